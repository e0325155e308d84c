//! TLS for clients: the certificate in force, who may connect with which certificate of their own, and how both are
//! renewed while connections go on.
//!
//! Every handshake asks for what is in force at that moment, so a renewal touches no connection. A TLS session that a
//! client resumes is not checked again: who is no longer an issuer of client certificates is refused for good only by
//! the next process.

use crate::config::{ServerTls, Tls};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;
use pingora_core::listeners::ALPN;
use pingora_core::listeners::tls::TlsSettings;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How often it is looked whether a file has changed. Certificates are renewed weeks before their end.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The certificate in force and the rule for those of clients.
#[derive(Debug)]
pub(super) struct Certificates {
    files: Tls,
    /// What the files looked like when they were read last. Held while they are read.
    seen: Mutex<Vec<Option<(SystemTime, u64)>>>,
    now: ArcSwap<ServerTls>,
}

impl Certificates {
    /// Those that were read from `files`.
    pub(super) fn new(files: Tls, read: ServerTls) -> Arc<Self> {
        let seen = Mutex::new(looks(&files));
        Arc::new(Certificates { files, seen, now: ArcSwap::from_pointee(read) })
    }

    /// Reads the files again. What is wrong with them is logged, and what was in force stays.
    pub(super) fn reload_certificates(&self) {
        let mut seen = self.seen.lock();
        *seen = looks(&self.files);
        match ServerTls::read(&self.files) {
            Ok(Some(read)) => {
                self.now.store(Arc::new(read));
                log::info!("the certificates were read again");
            }
            Ok(None) => {}
            Err(problems) => problems.iter().for_each(|p| {
                log::error!("certificates stay as they were: {}: found {}; allowed: {}", p.path, p.found, p.allowed);
            }),
        }
    }

    /// The same if a file has changed.
    fn renew(&self) {
        if *self.seen.lock() != looks(&self.files) {
            self.reload_certificates();
        }
    }

    fn clients(&self) -> Option<Arc<dyn ClientCertVerifier>> {
        self.now.load().clients.clone()
    }

    /// Of clients, if they need certificates by now: without issuers nobody is verified.
    fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        self.clients().ok_or_else(|| Error::General("no issuers of client certificates".to_owned()))
    }
}

/// When each file was changed last, and its size.
fn looks(files: &Tls) -> Vec<Option<(SystemTime, u64)>> {
    let look = |file: &Path| {
        let found = std::fs::metadata(file).ok()?;
        Some((found.modified().ok()?, found.len()))
    };
    [&files.cert, &files.key, &files.client_ca].into_iter().map(|file| look(file.as_deref()?)).collect()
}

/// The settings of one listener.
pub(super) fn settings(certificates: &Arc<Certificates>) -> TlsSettings {
    #[expect(clippy::expect_used, reason = "Pingora's constructor has no way to fail")]
    let mut settings = TlsSettings::intermediate("", "").expect("no file is read here");
    settings.set_cert_resolver(certificates.clone());
    settings.set_client_cert_verifier(certificates.clone());
    settings.set_alpn(ALPN::H2H1);
    settings
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now.load().certified.clone())
    }
}

impl ClientCertVerifier for Certificates {
    fn offer_client_auth(&self) -> bool {
        self.now.load().clients.is_some()
    }

    /// None: they may change from handshake to handshake.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verifier()?.verify_client_cert(cert, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier()?.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier()?.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.clients().map_or_else(Vec::new, |clients| clients.supported_verify_schemes())
    }
}

/// Looks after the files.
pub(super) struct Renewal(pub(super) Arc<Certificates>);

#[async_trait]
impl BackgroundService for Renewal {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => self.0.renew(),
                changed = shutdown.changed() => if changed.is_err() || *shutdown.borrow() { return },
            }
        }
    }
}
