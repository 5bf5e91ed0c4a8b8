//! The stops of docs/tour.md: do they exist, and are there as many files as its headings say?
//!
//! ```text
//!   ## A stream's bytes: 16 files
//!   1. [`send`](../guest-lib/src/stream/stream.rs): writes as soon as there is room
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{ImplItemFn, ItemFn, TraitItemFn};

/// What is wrong with a tour whose links are below `folder`: stops that do not exist, ways without
/// stops, and wrong numbers of files.
pub fn errors(folder: &Path, tour: &str) -> Vec<String> {
    let mut errors = Vec::new();
    for way in tour.split("\n## ").skip(1) {
        let (heading, list) = way.split_once('\n').unwrap_or((way, ""));
        let mut files = BTreeSet::new();
        for line in list.lines().filter(|line| is_item(line)) {
            let Some((function, file)) = stop(line) else {
                errors.push(format!("{heading}: no link to a function: {line}"));
                continue;
            };
            files.insert(file);
            if !exists(&folder.join(file), function) {
                errors.push(format!("{heading}: no function {function} in {file}"));
            }
        }
        let count = format!(": {} files", files.len());
        if files.is_empty() || !heading.ends_with(&count) {
            errors.push(format!("{heading}: the stops are in {} files", files.len()));
        }
    }
    errors
}

/// Returns true if a line is an item of a numbered list.
fn is_item(line: &str) -> bool {
    let number = line.split_once(". ").map(|(number, _)| number);
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The function and the file that an item links to.
fn stop(item: &str) -> Option<(&str, &str)> {
    let (_, link) = item.split_once(". [`")?;
    let (function, link) = link.split_once("`](")?;
    let (file, _) = link.split_once("): ")?;
    Some((function, file))
}

/// Returns true if the file is there and has the function.
fn exists(file: &Path, function: &str) -> bool {
    let Ok(text) = std::fs::read_to_string(file) else {
        return false;
    };
    if file.extension().is_some_and(|extension| extension == "rs") {
        let mut names = Names::default();
        syn::parse_file(&text).is_ok_and(|parsed| {
            names.visit_file(&parsed);
            names.0.contains(function)
        })
    } else {
        // A definition in C begins at the left margin.
        let call = format!(" {function}(");
        let mut lines = text.lines();
        lines.any(|line| line.contains(&call) && line.starts_with(char::is_alphabetic))
    }
}

/// The names of the functions of a file.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.0.insert(item.sig.ident.to_string());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.0.insert(item.sig.ident.to_string());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.0.insert(item.sig.ident.to_string());
        visit::visit_trait_item_fn(self, item);
    }
}
