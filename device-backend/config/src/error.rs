//! The one error of configuration: where it stands and what was expected.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// A value breaks a rule, or a file cannot be read as a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{message}{}", begin(location), prefix(key), end(location))]
pub struct ConfigError {
    /// Where it stands; `None`: the value does not come from a file.
    pub location: Option<Location>,
    /// The key it is about, such as `node[1].memory`; empty if it is no key.
    pub key: String,
    /// What is wrong and what was expected.
    pub message: String,
}

/// A location in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line itself.
    pub text: String,
}

impl ConfigError {
    /// The value of `key` breaks a rule.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            location: None,
            key: key.into(),
            message: message.into(),
        }
    }

    /// The same error, found at byte range `span` of `text`, the content of `file`.
    pub(crate) fn at(mut self, file: &Path, text: &str, span: &Range<usize>) -> Self {
        let before = text.get(..span.start).unwrap_or(text);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        self.message = self.message.trim_end().replace('\n', ", ");
        self.location = Some(Location {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
            text: text[start..].lines().next().unwrap_or("").to_owned(),
        });
        self
    }
}

fn begin(location: &Option<Location>) -> String {
    location.as_ref().map_or_else(String::new, |location| {
        format!(
            "{}:{}:{}: ",
            location.file.display(),
            location.line,
            location.column
        )
    })
}

fn prefix(key: &str) -> String {
    match key {
        "" => String::new(),
        key => format!("{key}: "),
    }
}

fn end(location: &Option<Location>) -> String {
    location
        .as_ref()
        .map_or_else(String::new, |location| format!("\n  | {}", location.text))
}
