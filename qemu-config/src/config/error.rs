//! A mistake in a cluster file: where it stands and what was expected.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::key::KeyPath;

/// A mistake in a cluster file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}:{column}: {}{message}", file.display(), prefix(key))]
pub struct ConfigError {
    /// The cluster file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The key it is about, such as `node[1].memory`; empty if it is no key.
    pub key: String,
    /// What is wrong and what was expected.
    pub message: String,
}

/// A value that breaks a rule, named by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) key: KeyPath,
    pub(crate) message: String,
}

impl Mistake {
    pub(crate) fn new(key: KeyPath, message: impl Into<String>) -> Self {
        Self {
            key,
            message: message.into(),
        }
    }
}

/// A specification made by a program breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct SpecError {
    /// The key of the cluster file that it corresponds to.
    pub key: String,
    /// What is wrong and what was expected.
    pub message: String,
}

fn prefix(key: &str) -> String {
    if key.is_empty() {
        String::new()
    } else {
        format!("{key}: ")
    }
}

impl ConfigError {
    /// A mistake at byte range `span` of `text`, the content of `file`.
    pub(super) fn at(
        file: &Path,
        text: &str,
        span: &Range<usize>,
        key: &KeyPath,
        message: &str,
    ) -> Self {
        let before = text.get(..span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key: key.to_string(),
            message: message.trim_end().replace('\n', ", "),
        }
    }
}
