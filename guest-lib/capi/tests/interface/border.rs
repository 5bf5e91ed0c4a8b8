//! What the border promises: `unsafe` in few modules, no panic out of any function, a code for each error.

use std::collections::BTreeSet;

use qnic::Status;
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, Item};

use crate::families::{file, source};
use crate::symbols::functions;

/// The modules that have `unsafe`.
const UNSAFE: [&str; 3] = ["border", "export_range", "owned"];

#[test]
fn unsafe_stands_in_named_modules() {
    for entry in std::fs::read_dir(file("src")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if UNSAFE.contains(&&*name) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or(""));
        let words = code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
        assert_eq!(
            words.filter(|word| *word == "unsafe").count(),
            0,
            "{}",
            path.display()
        );
    }
}

/// The functions that a function calls.
#[derive(Default)]
struct Called(BTreeSet<String>);

impl<'ast> Visit<'ast> for Called {
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(path) = &*call.func {
            let last = path.path.segments.last().unwrap();
            self.0.insert(last.ident.to_string());
        }
        visit::visit_expr_call(self, call);
    }
}

/// All functions of the sources, with those that each calls.
fn calls() -> Vec<(String, BTreeSet<String>)> {
    let entries = std::fs::read_dir(file("src")).unwrap();
    let texts = entries.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    let items = texts.flat_map(|text| syn::parse_file(&text).unwrap().items);
    let calls = items.filter_map(|item| match item {
        Item::Fn(function) => {
            let mut called = Called::default();
            called.visit_item_fn(&function);
            Some((function.sig.ident.to_string(), called.0))
        }
        _ => None,
    });
    calls.collect()
}

/// Each function does its work in `border::call`, or in one that does.
#[test]
fn every_function_catches_panics() {
    let calls = calls();
    let mut catching = BTreeSet::from(["call".to_owned()]);
    loop {
        let catches = |(_, called): &&(String, BTreeSet<String>)| !called.is_disjoint(&catching);
        let more = calls.iter().filter(catches).map(|(name, _)| name.clone());
        let more: BTreeSet<_> = more.chain(["call".to_owned()]).collect();
        if more == catching {
            break;
        }
        catching = more;
    }
    let exported = functions()
        .into_iter()
        .map(|function| function.sig.ident.to_string());
    let bare: Vec<_> = exported.filter(|name| !catching.contains(name)).collect();
    // They do nothing that can panic.
    assert_eq!(bare, ["qnic_strerror", "qnic_version"]);
}

/// `NoSuchNode` as `NO_SUCH_NODE`.
fn in_capitals(name: &str) -> String {
    let mut capitals = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !capitals.is_empty() {
            capitals.push('_');
        }
        capitals.push(character.to_ascii_uppercase());
    }
    capitals
}

#[test]
fn every_status_and_every_error_has_a_code() {
    let codes = source("codes");
    let statuses = (1..99).filter_map(|code| Status::try_from(code).ok());
    for status in statuses {
        let (name, code) = (in_capitals(&format!("{status:?}")), status.code());
        let line = format!("pub const QNIC_E_{name}: c_int = -{code};");
        assert!(codes.contains(&line), "codes.rs has no {line}");
    }
    let library = std::fs::read_to_string(file("../src/error/mod.rs")).unwrap();
    let items = syn::parse_file(&library).unwrap().items;
    let error = items.iter().find_map(|item| match item {
        Item::Enum(item) if item.ident == "Error" => Some(item),
        _ => None,
    });
    let failure = source("failure");
    for variant in &error.unwrap().variants {
        let name = format!("Error::{}", variant.ident);
        let is_it = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
        let named = failure.split(&name).skip(1).any(is_it);
        assert!(named, "failure.rs has no code for {name}");
    }
}
