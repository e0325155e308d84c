//! Answers for browsers of other origins (Fetch standard, section 3.2), where the configuration names origins. Without
//! that it is the engines' business: everything passes.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use http::{HeaderName, Method};
use pingora_error::Result;
use pingora_http::{RequestHeader, ResponseHeader};

/// What a page may ask for.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";
/// What a page may read of an answer besides the few fields that it always may.
const EXPOSED: &str = "x-ramjet-request-id, x-ramjet-upstream, x-ramjet-decision, x-ramjet-error, x-request-id, \
                       retry-after, www-authenticate";
/// Seconds that a browser may remember the answer to a preflight; browsers cap it at about this.
const MAX_AGE: &str = "7200";

/// The origins whose pages may use ramjet.
pub struct Cors(Vec<String>);

/// What an answer says to the page that asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Permission {
    /// Nothing: no origins are configured.
    #[default]
    Unmanaged,
    /// The request came from no page, or from one that may not read the answer.
    Denied,
    /// Pages of this origin may read it.
    Granted(HeaderValue),
}

impl Cors {
    /// Pages of these origins; `*` stands for any. `None` when there are none.
    pub fn new(origins: &[String]) -> Option<Self> {
        (!origins.is_empty()).then(|| Cors(origins.to_vec()))
    }

    /// What the answer to a request will say.
    pub(super) fn permission(&self, request: &RequestHeader) -> Permission {
        let Some(origin) = request.headers.get(ORIGIN) else { return Permission::Denied };
        if self.0.iter().any(|own| own == "*") {
            return Permission::Granted(HeaderValue::from_static("*"));
        }
        match self.0.iter().any(|own| own.as_bytes().eq_ignore_ascii_case(origin.as_bytes())) {
            true => Permission::Granted(origin.clone()),
            false => Permission::Denied,
        }
    }
}

/// Whether a browser asks if it may ask.
pub(super) fn is_preflight(request: &RequestHeader) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(ORIGIN)
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

impl Permission {
    /// Puts it into an answer, in place of what the engine says on the matter.
    pub(super) fn apply(&self, response: &mut ResponseHeader) -> Result<()> {
        if *self == Permission::Unmanaged {
            return Ok(());
        }
        for name in [&ACCESS_CONTROL_ALLOW_ORIGIN, &ACCESS_CONTROL_ALLOW_CREDENTIALS, &ACCESS_CONTROL_EXPOSE_HEADERS] {
            response.remove_header(name);
        }
        if !varies_by(response, &ORIGIN) {
            response.append_header(VARY, "Origin")?;
        }
        if let Permission::Granted(origin) = self {
            response.insert_header(ACCESS_CONTROL_ALLOW_ORIGIN, origin)?;
            response.insert_header(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED)?;
        }
        Ok(())
    }

    /// The answer to a preflight. `*` would not allow `Authorization`, so the fields asked for are repeated.
    pub(super) fn preflight(&self, request: &RequestHeader) -> Result<ResponseHeader> {
        let mut head = ResponseHeader::build(204, Some(8))?;
        self.apply(&mut head)?;
        head.append_header(VARY, "Access-Control-Request-Headers")?;
        if let Permission::Granted(_) = self {
            head.remove_header(&ACCESS_CONTROL_EXPOSE_HEADERS);
            head.insert_header(ACCESS_CONTROL_ALLOW_METHODS, METHODS)?;
            head.insert_header(ACCESS_CONTROL_MAX_AGE, MAX_AGE)?;
            if let Some(fields) = request.headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                head.insert_header(ACCESS_CONTROL_ALLOW_HEADERS, fields)?;
            }
        }
        Ok(head)
    }
}

fn varies_by(response: &ResponseHeader, field: &HeaderName) -> bool {
    let named = |value: &HeaderValue| {
        let names = value.as_bytes().split(|c| *c == b',').map(<[u8]>::trim_ascii);
        names.into_iter().any(|name| name == b"*" || name.eq_ignore_ascii_case(field.as_str().as_bytes()))
    };
    response.headers.get_all(VARY).iter().any(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, fields: &[(&'static str, &str)]) -> RequestHeader {
        let mut request = RequestHeader::build(method, b"/v1/models", None).unwrap();
        for (name, value) in fields {
            request.append_header(*name, *value).unwrap();
        }
        request
    }

    fn cors(origins: &[&str]) -> Cors {
        Cors::new(&origins.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn only_the_origins_that_are_named_are_granted() {
        let granted = |origin: &'static str| Permission::Granted(HeaderValue::from_static(origin));
        for (origins, fields, want) in [
            (&["https://a.test"][..], &[("origin", "https://a.test")][..], granted("https://a.test")),
            (&["https://a.test"], &[("origin", "https://a.test.evil")], Permission::Denied),
            (&["https://a.test"], &[("origin", "null")], Permission::Denied),
            (&["https://a.test"], &[], Permission::Denied),
            (&["*"], &[("origin", "https://b.test")], granted("*")),
        ] {
            assert_eq!(cors(origins).permission(&request("GET", fields)), want, "{fields:?}");
        }
        assert!(Cors::new(&[]).is_none());
    }

    #[test]
    fn what_the_engine_says_is_replaced_and_vary_is_kept() {
        let mut response = ResponseHeader::build(200, None).unwrap();
        response.append_header("access-control-allow-origin", "*").unwrap();
        response.append_header("vary", "accept-encoding").unwrap();
        Permission::Unmanaged.apply(&mut response).unwrap();
        assert_eq!(response.headers["access-control-allow-origin"], "*");
        for _ in 0..2 {
            Permission::Granted(HeaderValue::from_static("https://a.test")).apply(&mut response).unwrap();
            let values: Vec<_> = response.headers.get_all("access-control-allow-origin").iter().collect();
            assert_eq!(values, ["https://a.test"]);
            let vary: Vec<_> = response.headers.get_all("vary").iter().collect();
            assert_eq!(vary, ["accept-encoding", "Origin"]);
        }
        Permission::Denied.apply(&mut response).unwrap();
        assert!(!response.headers.contains_key("access-control-allow-origin"));
    }

    #[test]
    fn a_preflight_gets_the_fields_that_it_asks_for() {
        let asked = [
            ("origin", "https://a.test"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,x-stainless-os"),
        ];
        assert!(is_preflight(&request("OPTIONS", &asked)));
        assert!(!is_preflight(&request("OPTIONS", &asked[..1])) && !is_preflight(&request("POST", &asked)));
        let asked = request("OPTIONS", &asked);
        let head = cors(&["https://a.test"]).permission(&asked).preflight(&asked).unwrap();
        assert_eq!(head.status, 204);
        assert_eq!(head.headers["access-control-allow-headers"], "authorization,x-stainless-os");
        assert_eq!(head.headers["access-control-allow-origin"], "https://a.test");
        let head = cors(&["https://b.test"]).permission(&asked).preflight(&asked).unwrap();
        assert!(!head.headers.contains_key("access-control-allow-headers"));
    }
}
