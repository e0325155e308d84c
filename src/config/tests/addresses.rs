//! Listeners have addresses that they can have side by side.

use super::load_with;

#[test]
fn addresses_that_nobody_can_have_side_by_side_are_refused() {
    let fleet = "fleet: { replicas: [{ url: \"http://a:1\" }] }";
    let said = |listen: &str| load_with(&format!("{fleet}\nlisten: {{ {listen} }}"), &[]);
    for fits in [
        "api: [\"0.0.0.0:8000\", \"[::]:8000\", \"unix:/a\", \"unix:/b\"], admin: \"127.0.0.1:9090\"",
        "api: [\"127.0.0.1:0\"], admin: \"127.0.0.1:0\"",
        "api: [\"127.0.0.1:8000\", \"127.0.0.2:8000\", \"127.0.0.1:8001\"], admin: \"127.0.0.3:8000\"",
    ] {
        assert!(said(fits).is_ok(), "{fits}");
    }
    for (collides, setting) in [
        ("api: [\"127.0.0.1:8000\", \"127.0.0.1:8000\"]", "listen.api[1]"),
        ("api: [\"127.0.0.1:8000\", \"0.0.0.0:8000\"]", "listen.api[1]"),
        ("api: [\"unix:/a\", \"unix:/a\"]", "listen.api[1]"),
        ("api: [\"127.0.0.1:8000\"], admin: \"127.0.0.1:8000\"", "listen.admin"),
        ("api: [\"0.0.0.0:9090\"]", "listen.admin"),
        ("api: [\"[::]:9090\"]", "listen.admin"),
        ("api: [\"0.0.0.0:9090\"], admin: \"[::]:9090\"", "listen.admin"),
    ] {
        let problems = said(collides).unwrap_err();
        assert!(
            problems.len() == 1 && problems[0].starts_with(&format!("conf.yaml:2: {setting}: found")),
            "{problems:?}"
        );
    }
}
