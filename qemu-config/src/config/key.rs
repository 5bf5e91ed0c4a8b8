//! Which part of a cluster file something is about, and where that stands.
//!
//! Serde reports a place (a span) without a key; checks made after parsing know
//! a key without a place. Both directions go through the same parse tree, so
//! that every message can have both.

use std::fmt;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// One step from a table or list to something in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

/// The way from the top of the file to a value: `node[1].memory`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyPath(pub(crate) Vec<Step>);

impl KeyPath {
    pub(crate) fn top() -> Self {
        Self::default()
    }

    pub(crate) fn key(&self, name: &str) -> Self {
        self.then(Step::Key(name.to_owned()))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        self.then(Step::Index(index))
    }

    fn then(&self, step: Step) -> Self {
        let mut path = self.clone();
        path.0.push(step);
        path
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(name) if depth == 0 => write!(f, "{name}")?,
                Step::Key(name) => write!(f, ".{name}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Where `path` stands: the span of the deepest part of it that the file has.
pub(crate) fn span_of(root: &DeTable<'_>, path: &KeyPath) -> Range<usize> {
    let mut span = 0..0;
    let Some((Step::Key(first), rest)) = path.0.split_first() else {
        return span;
    };
    let Some(mut value) = root.get(first.as_str()) else {
        return span;
    };
    span = value.span();
    for step in rest {
        let next = match (step, value.get_ref()) {
            (Step::Key(name), DeValue::Table(table)) => table.get(name.as_str()),
            (Step::Index(index), DeValue::Array(array)) => array.get(*index),
            _ => None,
        };
        let Some(next) = next else { break };
        value = next;
        span = value.span();
    }
    span
}

/// Which value or key stands at `at`: the deepest one that covers it.
pub(crate) fn path_at(root: &DeTable<'_>, at: &Range<usize>) -> KeyPath {
    let mut path = KeyPath::top();
    in_table(root, at, &mut path);
    path
}

fn covers(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn in_table(table: &DeTable<'_>, at: &Range<usize>, path: &mut KeyPath) -> bool {
    for (key, value) in table {
        path.0.push(Step::Key(key.get_ref().to_string()));
        if covers(&key.span(), at) || in_value(value.get_ref(), &value.span(), at, path) {
            return true;
        }
        path.0.pop();
    }
    false
}

/// A list of tables (`[[node]]`) has no span that covers its elements, so what is
/// inside is looked at before the value's own span.
fn in_value(
    value: &DeValue<'_>,
    span: &Range<usize>,
    at: &Range<usize>,
    path: &mut KeyPath,
) -> bool {
    let inside = match value {
        DeValue::Table(table) => in_table(table, at, path),
        DeValue::Array(array) => array.iter().enumerate().any(|(index, element)| {
            path.0.push(Step::Index(index));
            let found = in_value(element.get_ref(), &element.span(), at, path);
            if !found {
                path.0.pop();
            }
            found
        }),
        _ => false,
    };
    inside || covers(span, at)
}
