//! The dashboard: files that are part of the binary and load nothing but each other and the API. There is no step that
//! builds them; a browser runs what stands in `page/`.

use super::Answer;

/// What it may do: no script and no style that stands in the page itself, nothing from elsewhere, no form, no frame.
pub(super) const MAY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                              img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($path:literal: $kind:ident, $file:literal;)+) => {
        &[$(($path, $kind, include_str!(concat!("page/", $file)))),+]
    };
}

/// Paths, kinds and contents.
const FILES: &[(&str, &str, &str)] = files! {
    "/": HTML, "index.html";
    "/page/look.css": STYLE, "look.css";
    "/page/views.css": STYLE, "views.css";
    "/page/app.js": SCRIPT, "app.js";
    "/page/tools.js": SCRIPT, "tools.js";
    "/page/chart.js": SCRIPT, "chart.js";
    "/page/overview.js": SCRIPT, "overview.js";
    "/page/fleet.js": SCRIPT, "fleet.js";
    "/page/decisions.js": SCRIPT, "decisions.js";
    "/page/prefixes.js": SCRIPT, "prefixes.js";
    "/page/linter.js": SCRIPT, "linter.js";
    "/page/settings.js": SCRIPT, "settings.js";
};

/// The file of a path.
pub(super) fn file(path: &str) -> Option<Answer> {
    let (_, kind, text) = FILES.iter().find(|(known, ..)| *known == path)?;
    Some(Answer { status: 200, kind, body: text.as_bytes().to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_load_each_other_and_nothing_else() {
        let page = FILES[0].2;
        for (path, _, _) in &FILES[1..] {
            let name = path.rsplit('/').next().unwrap();
            let imported = FILES.iter().any(|(_, _, text)| text.contains(&format!("./{name}\"")));
            assert!(page.contains(path) || imported, "nobody loads {path}");
        }
        for (path, _, text) in FILES {
            for never in
                ["http:", "https:", "//cdn", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                assert!(!text.contains(never), "{path}: {never}");
            }
            assert!(text.lines().count() <= 420, "{path} is too long");
        }
        for attribute in ["src=\"", "href=\""] {
            for target in page.split(attribute).skip(1) {
                assert!(["/page/", "#", "data:,"].iter().any(|own| target.starts_with(own)), "{target}");
            }
        }
        assert!(
            !page.contains("style=") && !page.contains("<script>") && !page.contains("<style>"),
            "the policy forbids it"
        );
        assert!(!["onclick=", "onload=", "onerror="].iter().any(|handler| page.contains(handler)));
    }
}
