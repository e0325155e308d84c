//! The sheet on which the reference is written: indented YAML with comments.

/// Text under construction.
#[derive(Default)]
pub(super) struct Page {
    text: String,
    indent: usize,
    /// Whether comments and empty lines are left out.
    is_bare: bool,
}

impl Page {
    /// A sheet for keys and values alone.
    pub(super) fn bare() -> Self {
        Page { is_bare: true, ..Page::default() }
    }

    /// One line at the present indentation.
    pub(super) fn line(&mut self, line: &str) {
        if !line.is_empty() {
            self.text.push_str(&"  ".repeat(self.indent));
            self.text.push_str(line);
        }
        self.text.push('\n');
    }

    /// An empty line before a section, unless the section is the first below another.
    pub(super) fn gap(&mut self) {
        if !self.is_bare && !self.text.ends_with(":\n") {
            self.line("");
        }
    }

    /// One comment; each line of it becomes a comment line.
    pub(super) fn comment(&mut self, text: &str) {
        let is_bare = self.is_bare;
        for line in text.lines().filter(|_| !is_bare) {
            self.line(format!("# {line}").trim_end());
        }
    }

    /// The documentation of a setting, and what it may be.
    pub(super) fn describe(&mut self, docs: &[&str], allowed: &str) {
        for doc in docs {
            self.comment(doc.trim());
        }
        if !allowed.is_empty() {
            self.comment(&format!("Allowed: {allowed}."));
        }
    }

    /// Writes what belongs below the last line.
    pub(super) fn below(&mut self, write: impl FnOnce(&mut Page)) {
        self.indent += 1;
        write(self);
        self.indent -= 1;
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}
