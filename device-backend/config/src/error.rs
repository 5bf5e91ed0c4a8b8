//! The one error of configuration: where it stands and what was expected.

use std::ops::Range;
use std::path::Path;

/// A value breaks a rule, or a file cannot be read as a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}{}{message}{line}", prefix(key))]
pub struct ConfigError {
    /// File, line and column, both from 1, the latter in characters; empty if the value does
    /// not come from a file.
    place: String,
    /// The key it is about, such as `node[1].memory`; empty if it is no key.
    pub(crate) key: String,
    /// What is wrong and what was expected.
    message: String,
    /// The line of the file.
    line: String,
}

impl ConfigError {
    /// The value of `key` breaks a rule.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            place: String::new(),
            key: key.into(),
            message: message.into(),
            line: String::new(),
        }
    }

    /// The same error of a table that stands at `to` instead of `from`.
    #[must_use]
    pub fn within(mut self, from: &str, to: &str) -> Self {
        if let Some(rest) = self.key.strip_prefix(from) {
            self.key = format!("{to}{rest}");
        }
        self
    }

    /// The same error, found at byte range `span` of `text`, the content of `file`.
    pub(crate) fn at(self, file: &Path, text: &str, span: &Range<usize>) -> Self {
        let before = text.get(..span.start).unwrap_or(text);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[start..].chars().count() + 1;
        let shown = text[start..].lines().next().unwrap_or("");
        Self {
            place: format!("{}:{line}:{column}: ", file.display()),
            key: self.key,
            message: self.message.trim_end().replace('\n', ", "),
            line: format!("\n  | {shown}"),
        }
    }
}

fn prefix(key: &str) -> String {
    match key {
        "" => String::new(),
        key => format!("{key}: "),
    }
}
