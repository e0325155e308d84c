//! Certificates and keys: read from the files that settings name, and checked as far as that goes without a peer.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};

use super::reader::Reader;
use super::replicas::WrittenReplica;
use super::table::Tls;
use super::traces::Traces;

/// What the API listeners show to clients, and ask of them.
#[derive(Clone)]
pub struct ServerTls {
    /// The certificates and the key that belongs to the first one.
    pub certified: Arc<CertifiedKey>,
    /// Who checks the certificates of clients, if they need one.
    pub clients: Option<Arc<dyn ClientCertVerifier>>,
}

/// How a replica, or a collector of traces, behind https is known to be itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Whether its certificate is verified.
    pub verify: bool,
    /// Those who may have issued it, as DER.
    pub issuers: Arc<Vec<Vec<u8>>>,
}

/// One thing that is wrong with a file: the setting that names it, what was found, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFile {
    /// The setting.
    pub path: String,
    /// What was found.
    pub found: String,
    /// What is allowed.
    pub allowed: &'static str,
}

const CERTIFICATE: &str = "a readable PEM file that holds a certificate";
const KEY: &str = "a readable PEM file that holds the private key of listen.tls.cert";

/// Read once: the replicas that need them share them.
static SYSTEM: LazyLock<Arc<Vec<Vec<u8>>>> = LazyLock::new(|| {
    let found = rustls_native_certs::load_native_certs().unwrap_or_default();
    // an issuer that cannot be used is left out, as other programs do
    let usable = found.into_iter().filter(|cert| RootCertStore::empty().add(cert.clone()).is_ok());
    Arc::new(usable.map(|cert| cert.to_vec()).collect())
});

impl ServerTls {
    /// Reads the files; `None` where TLS is off.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn read(tls: &Tls) -> Result<Option<ServerTls>, Vec<BadFile>> {
        let (cert, key) = match (&tls.cert, &tls.key) {
            (Some(cert), Some(key)) => (cert, key),
            (None, None) if tls.client_ca.is_none() => return Ok(None),
            (cert, _) => {
                let path = if cert.is_none() { "listen.tls.cert" } else { "listen.tls.key" };
                return Err(vec![bad(path, "no file", "a file, as TLS needs a certificate and its key")]);
            }
        };
        let certs = certificates(cert).map_err(|found| bad("listen.tls.cert", found, CERTIFICATE));
        let key = private_key(key).map_err(|found| bad("listen.tls.key", found, KEY));
        let clients = tls.client_ca.as_deref().map(verifier).transpose();
        let clients = clients.map_err(|found| bad("listen.tls.client_ca", found, CERTIFICATE));
        match (certs, key, clients) {
            (Ok(certs), Ok(key), Ok(clients)) => {
                let certified = certify(certs, key).map_err(|problem| vec![problem])?;
                Ok(Some(ServerTls { certified: Arc::new(certified), clients }))
            }
            (certs, key, clients) => Err([certs.err(), key.err(), clients.err()].into_iter().flatten().collect()),
        }
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls(not shown)")
    }
}

fn bad(path: &str, found: impl Into<String>, allowed: &'static str) -> BadFile {
    BadFile { path: path.to_owned(), found: found.into(), allowed }
}

fn certify(certs: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<CertifiedKey, BadFile> {
    CertifiedKey::from_der(certs, key, &default_provider()).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            bad("listen.tls.key", "a key that does not belong to listen.tls.cert", KEY)
        }
        Error::InvalidCertificate(_) => bad("listen.tls.cert", "a certificate that cannot be parsed", CERTIFICATE),
        // the text of other errors may hold some of the key
        _ => bad("listen.tls.key", "a key of a kind that is not supported", KEY),
    })
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("a file that cannot be read ({error})"))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(file)?;
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certs {
        Ok(certs) if certs.is_empty() => Err("a file without a certificate".to_owned()),
        Ok(certs) => Ok(certs),
        Err(_) => Err("a file that is no good PEM".to_owned()),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let text = read(file)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| "a file without a private key that can be read".to_owned())
}

/// The issuers in a file, as a store and as they are.
fn issuers(file: &Path) -> Result<(RootCertStore, Vec<Vec<u8>>), String> {
    let certs = certificates(file)?;
    let mut store = RootCertStore::empty();
    for cert in &certs {
        store.add(cert.clone()).map_err(|_| "a certificate that cannot be parsed".to_owned())?;
    }
    Ok((store, certs.iter().map(|cert| cert.to_vec()).collect()))
}

fn verifier(file: &Path) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let (store, _) = issuers(file)?;
    let built = WebPkiClientVerifier::builder_with_provider(Arc::new(store), Arc::new(default_provider())).build();
    built.map_err(|error| format!("issuers that cannot be used ({error})"))
}

/// Certificate, key and client issuers of the listeners.
pub(super) fn server(tls: &Tls, reader: &mut Reader) -> Option<ServerTls> {
    match ServerTls::read(tls) {
        Ok(read) => read,
        Err(problems) => {
            problems.into_iter().for_each(|p| reader.report_setting(&p.path, p.found, p.allowed));
            None
        }
    }
}

/// How the replica at `path` of the settings is verified; `None` for one that is reached without TLS.
pub(super) fn upstream(replica: &WrittenReplica, path: &str, reader: &mut Reader) -> Option<UpstreamTls> {
    let is_tls = replica.url.as_ref().is_some_and(|url| url.is_tls);
    let (file, verify) = (replica.ca_file.as_deref(), replica.tls_verify);
    if !is_tls {
        if file.is_some() || !verify {
            let last = if file.is_some() { "ca_file" } else { "tls_verify" };
            reader.report_setting(&format!("{path}.{last}"), "a setting of https", "it only beside an https:// URL");
        }
        return None;
    }
    trusted(file, path, reader).map(|issuers| UpstreamTls { verify, issuers })
}

/// How the collector of traces is verified; `None` for one that is reached without TLS.
pub(super) fn collector(traces: &Traces, reader: &mut Reader) -> Option<UpstreamTls> {
    let file = traces.ca_file.as_deref();
    if !traces.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("https://")) {
        if file.is_some() {
            reader.report_setting("traces.ca_file", "a setting of https", "it only beside an https:// endpoint");
        }
        return None;
    }
    trusted(file, "traces", reader).map(|issuers| UpstreamTls { verify: true, issuers })
}

/// The issuers in a file, or those that the system trusts; `path` is the section that names the file.
fn trusted(file: Option<&Path>, path: &str, reader: &mut Reader) -> Option<Arc<Vec<Vec<u8>>>> {
    let found = match file.map(issuers) {
        None => Ok(SYSTEM.clone()),
        Some(read) => read.map(|(_, issuers)| Arc::new(issuers)),
    };
    let nobody = || "no file, and a system that trusts nobody".to_owned();
    match found.and_then(|issuers| if issuers.is_empty() { Err(nobody()) } else { Ok(issuers) }) {
        Ok(issuers) => Some(issuers),
        Err(found) => {
            reader.report_setting(&format!("{path}.ca_file"), found, CERTIFICATE);
            None
        }
    }
}
