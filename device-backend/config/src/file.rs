//! From the text of a TOML file to checked values, and from errors to locations in it.
//!
//! Serde reports a span without a key; checks made after parsing know a key without a
//! span. Both directions go through the same parse tree, so every error has both.

use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use crate::ConfigError;

/// Parses `text`, the content of `file`, and has `check` make the result of it. An error
/// of `check` gets the location of its key.
///
/// # Errors
/// Returns the first error, with its location.
pub fn parse<Raw: DeserializeOwned, T>(
    text: &str,
    file: &Path,
    check: impl FnOnce(Raw) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let (tree, syntax) = DeTable::parse_recoverable(text);
    let tree = tree.get_ref();
    let first = syntax
        .iter()
        .min_by_key(|error| error.span().map(|span| span.start));
    if let Some(error) = first {
        let span = error.span().unwrap_or(0..0);
        return Err(ConfigError::new("", error.message()).at(file, text, &span));
    }
    let raw = toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        ConfigError::new(key_at(tree, &span), error.message()).at(file, text, &span)
    })?;
    check(raw).map_err(|error| {
        let span = span_of(tree, &error.key);
        error.at(file, text, &span)
    })
}

/// The span of the deepest part of `key` that the file has.
fn span_of(root: &DeTable<'_>, key: &str) -> Range<usize> {
    let mut steps = key.split(['.', '[']);
    let Some(mut value) = steps.next().and_then(|first| root.get(first)) else {
        return 0..0;
    };
    for step in steps {
        let next = match value.get_ref() {
            DeValue::Table(table) => table.get(step),
            DeValue::Array(array) => {
                let index = step.strip_suffix(']').and_then(|step| step.parse().ok());
                index.and_then(|index: usize| array.get(index))
            }
            _ => None,
        };
        let Some(next) = next else { break };
        value = next;
    }
    value.span()
}

/// The key of the deepest value, or of the key, that covers `at`; none for what concerns all of
/// the file, of which serde says nothing else.
fn key_at(root: &DeTable<'_>, at: &Range<usize>) -> String {
    match at.is_empty() {
        true => String::new(),
        false => in_table(root, at, "").unwrap_or_default(),
    }
}

fn covers(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn in_table(table: &DeTable<'_>, at: &Range<usize>, path: &str) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{}", key.get_ref());
        match covers(&key.span(), at) {
            true => Some(path),
            false => in_value(value.get_ref(), &value.span(), at, &path),
        }
    })
}

/// A list of tables (`[[node]]`) has no span that covers its elements, so what is
/// inside is looked at before the value's own span.
fn in_value(
    value: &DeValue<'_>,
    span: &Range<usize>,
    at: &Range<usize>,
    path: &str,
) -> Option<String> {
    let inside = match value {
        DeValue::Table(table) => in_table(table, at, path),
        DeValue::Array(array) => array.iter().enumerate().find_map(|(index, element)| {
            let path = format!("{path}[{index}]");
            in_value(element.get_ref(), &element.span(), at, &path)
        }),
        _ => None,
    };
    inside.or_else(|| covers(span, at).then(|| path.to_owned()))
}
