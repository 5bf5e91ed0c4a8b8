//! Every public call of the library has a counterpart in C, or a reason why it has none.

use std::collections::BTreeSet;
use std::path::Path;

use syn::{Attribute, ImplItem, Item, Type, Visibility};

use crate::families::file;
use crate::symbols::functions;

/// What a line of `counterparts.txt` says of some calls.
struct Line<'a> {
    /// A function of C; of a reason none.
    function: Option<&'a str>,
    calls: Vec<&'a str>,
}

fn lines(text: &str) -> Vec<Line<'_>> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let line = |line| {
        let (what, calls) = str::split_once(line, ": ").unwrap_or_else(|| panic!("{line}"));
        Line {
            function: (!what.starts_with("- ")).then_some(what),
            calls: calls.split(", ").collect(),
        }
    };
    lines.map(line).collect()
}

/// Names of public calls, each with the entries of the list that cover it.
type Calls = Vec<(String, Vec<String>)>;

fn is_test(attributes: &[Attribute]) -> bool {
    let of_tests = |attribute: &Attribute| {
        let tokens = attribute
            .meta
            .require_list()
            .map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg") && tokens.is_ok_and(|tokens| tokens == "test")
    };
    attributes.iter().any(of_tests)
}

fn name_of(ty: &Type) -> Option<String> {
    let Type::Path(path) = ty else { return None };
    Some(path.path.segments.last()?.ident.to_string())
}

/// The public calls of a file.
fn calls_of(folder: &str, module: &str, text: &str, calls: &mut Calls) {
    let is_public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
    let mut add = |owner: &str, name: &str| {
        let call = format!("{owner}::{name}");
        let covered = [
            call.clone(),
            owner.to_owned(),
            format!("{folder}/"),
            format!("{module}/"),
        ];
        calls.push((call, covered.into()));
    };
    for item in syn::parse_file(text).unwrap().items {
        match item {
            Item::Fn(function) if is_public(&function.vis) && !is_test(&function.attrs) => {
                add(module, &function.sig.ident.to_string());
            }
            Item::Impl(block) if block.trait_.is_none() => {
                let Some(owner) = name_of(&block.self_ty) else {
                    continue;
                };
                for item in &block.items {
                    if let ImplItem::Fn(method) = item {
                        if is_public(&method.vis) {
                            add(&owner, &method.sig.ident.to_string());
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// All public calls of the library. `core` has none: nothing of it is exported.
fn calls(root: &Path, folder: &str, calls: &mut Calls) {
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let is_top = folder.is_empty();
        match path.is_dir() {
            true if is_top && ["core", "model", "tests"].contains(&&*name) => {}
            true => self::calls(&path, if is_top { &name } else { folder }, calls),
            false if name == "tests" => {}
            false => calls_of(
                folder,
                &name,
                &std::fs::read_to_string(&path).unwrap(),
                calls,
            ),
        }
    }
}

#[test]
fn every_call_of_the_library_has_a_counterpart_or_a_reason() {
    let list = std::fs::read_to_string(file("tests/interface/counterparts.txt")).unwrap();
    let lines = lines(&list);
    let listed: BTreeSet<_> = lines.iter().flat_map(|line| line.calls.clone()).collect();
    let all: usize = lines.iter().map(|line| line.calls.len()).sum();
    assert_eq!(listed.len(), all, "a call is listed twice");

    let mut calls = Calls::new();
    self::calls(&file("../src"), "", &mut calls);
    assert!(calls.len() > 300, "{}", calls.len());
    let is_listed = |covered: &[String]| covered.iter().any(|name| listed.contains(&**name));
    let without = calls.iter().filter(|(_, covered)| !is_listed(covered));
    let without: BTreeSet<_> = without.map(|(call, _)| call).collect();
    assert!(
        without.is_empty(),
        "no counterpart in C, and no reason: write one and list it in counterparts.txt, or say why \
         there is none (docs/c-api.md): {without:#?}"
    );

    let known: BTreeSet<_> = calls.iter().flat_map(|(_, covered)| covered).collect();
    let gone: Vec<_> = listed
        .iter()
        .filter(|name| !known.contains(&(**name).to_owned()))
        .collect();
    assert!(
        gone.is_empty(),
        "listed, and no call of the library: {gone:#?}"
    );

    let functions: BTreeSet<_> = functions()
        .iter()
        .map(|it| it.sig.ident.to_string())
        .collect();
    let named = lines.iter().filter_map(|line| line.function);
    let unknown: Vec<_> = named.filter(|name| !functions.contains(*name)).collect();
    assert!(unknown.is_empty(), "no functions of C: {unknown:#?}");
}
