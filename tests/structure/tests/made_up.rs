//! The check of module arrows on small trees that are made up.

use qnic_structure::modules::{between_children, circle, grouped, Arrow, Tree};

fn tree(files: &[(&str, &str)]) -> Tree {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    Tree::read(directory.path()).unwrap()
}

/// Arrows of a crate with the modules a and b, each with a type, as "from to".
fn arrows(a: &str, b: &str) -> Vec<String> {
    let a = format!("pub struct A; {a}");
    let b = format!("pub struct B; {b}");
    let tree = tree(&[("lib.rs", "mod a; mod b;"), ("a.rs", &a), ("b.rs", &b)]);
    tree.arrows().iter().map(pair).collect()
}

fn pair(arrow: &Arrow) -> String {
    let short = |path: &str| path.strip_prefix("crate::").unwrap_or(path).to_owned();
    format!("{} {}", short(&arrow.from), short(&arrow.to))
}

fn circle_of(tree: &Tree) -> Vec<String> {
    circle(&tree.arrows())
        .into_iter()
        .flatten()
        .map(pair)
        .collect()
}

#[test]
fn an_arrow_is_drawn_however_it_is_written() {
    for code in [
        "use crate::b::B;",
        "use super::b;",
        "use crate::{b::B as C};",
        "use crate::b::*;",
        "fn f(_: crate::b::B) {}",
        "fn f() { let _ = super::b::B; }",
        "fn f() { use crate::b::B; }",
        "fn f() { println!(\"{:?}\", crate::b::B); }",
        "impl crate::b::B { fn f() {} }",
    ] {
        assert_eq!(arrows(code, ""), ["a b"], "{code}");
    }
}

#[test]
fn tests_other_crates_and_variables_draw_none() {
    for code in [
        "use std::fmt; use serde::b::B;",
        "#[cfg(test)] mod tests { use crate::b::B; }",
        "#[cfg(any(test, feature = \"testing\"))] mod testing;",
        "#[cfg(test)] use crate::b::B;",
        "impl A { #[cfg(test)] fn f() { crate::b::B; } }",
        "pub(in crate::b) struct C;",
        "fn f(b: u8) -> u8 { assert!(b > 0); b }",
        "/// [`crate::b::B`]\npub struct C;",
    ] {
        assert_eq!(arrows(code, ""), [""; 0], "{code}");
    }
}

#[test]
fn a_circle_is_found() {
    let both = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
    ];
    let one_way = tree(&[&both[..], &[("b.rs", "pub struct B;")]].concat());
    assert_eq!(circle_of(&one_way), [""; 0]);
    let circle = tree(
        &[
            &both[..],
            &[("b.rs", "pub struct B; fn f() { crate::a::A; }")],
        ]
        .concat(),
    );
    assert_eq!(circle_of(&circle), ["a b", "b a"]);
    let circle = tree(&[
        ("lib.rs", "mod a { use crate::b::B; pub struct A; } mod b; mod c { use crate::a::A; pub struct C; }"),
        ("b/mod.rs", "mod d; pub use d::B;"),
        ("b/d.rs", "use crate::c::C; pub struct B;"),
    ]);
    assert_eq!(circle_of(&circle), ["a b::d", "b::d c", "c a"]);
}

/// Declaring and re-exporting is no arrow; using what a child defines is one.
#[test]
fn a_parent_may_re_export_its_children() {
    let child = ("a/b.rs", "use super::A; use super::C; pub struct B;");
    let other = ("a/c.rs", "pub struct C;");
    let with = |parent| tree(&[("lib.rs", "mod a;"), ("a/mod.rs", parent), child, other]);
    let facade = with("mod b; mod c; pub(crate) use b::B; pub use self::c::*; pub struct A;");
    let pairs: Vec<_> = facade.arrows().iter().map(pair).collect();
    assert_eq!(pairs, ["a::b a", "a::b a::c"]);
    let user = with("mod b; mod c; pub(crate) use b::B; pub use c::C; pub struct A(B);");
    assert_eq!(circle_of(&user), ["a a::b", "a::b a"]);
}

#[test]
fn groups_can_stand_in_a_circle_though_their_files_do_not() {
    let tree = tree(&[
        (
            "lib.rs",
            "mod a { pub mod x { use crate::b::y::Y; } pub mod z { pub struct Z; } } mod b;",
        ),
        (
            "b.rs",
            "pub mod y { pub struct Y; } mod w { use crate::a::z::Z; }",
        ),
    ]);
    assert_eq!(circle_of(&tree), [""; 0]);
    let folder = |path: &str| path.split("::").take(2).collect::<Vec<_>>().join("::");
    assert_eq!(
        circle(&grouped(&tree.arrows(), folder)).map_or(0, |it| it.len()),
        2
    );
}

#[test]
fn protocols_that_import_each_other_are_found() {
    let with = |rdma: &str| {
        let rdma = format!("mod write; {rdma}");
        let tree = tree(&[
            ("lib.rs", "mod core { pub struct Job; } mod protocols;"),
            (
                "protocols/mod.rs",
                "mod rdma; mod atomic; use rdma::Rdma; struct All(Rdma, atomic::Word);",
            ),
            ("protocols/rdma/mod.rs", &rdma),
            (
                "protocols/rdma/write.rs",
                "use super::Rdma; use crate::core::Job;",
            ),
            ("protocols/atomic.rs", "pub struct Word;"),
        ]);
        let arrows = tree.arrows();
        between_children(&arrows, "crate::protocols")
            .into_iter()
            .map(pair)
            .collect::<Vec<_>>()
    };
    assert_eq!(with("pub struct Rdma;"), [""; 0]);
    let crossing = with("pub struct Rdma(super::atomic::Word);");
    assert_eq!(crossing, ["protocols::rdma protocols::atomic"]);
}

#[test]
fn fields_that_are_not_private_are_found() {
    let fields = |nic: &str| tree(&[("lib.rs", "mod nic;"), ("nic.rs", nic)]).open_fields("Nic");
    assert_eq!(
        fields("pub struct Nic<'a> { a: &'a u8, b: u8 }"),
        Ok(vec![])
    );
    let open = fields("pub struct Nic { pub(crate) a: u8, b: u8, pub(super) c: u8 }");
    assert_eq!(open, Ok(vec!["a".to_owned(), "c".to_owned()]));
    assert!(fields("pub struct Nick;").is_err());
}

#[test]
fn methods_that_stand_elsewhere_are_found() {
    let tree = tree(&[
        (
            "lib.rs",
            "mod nic; mod send { impl crate::nic::Nic { fn f() {} } impl Clone for Nic {} }",
        ),
        (
            "nic.rs",
            "pub struct Nic; impl Nic {} mod part { impl super::Nic {} }",
        ),
    ]);
    assert_eq!(tree.methods_elsewhere("Nic", "crate::nic"), ["crate::send"]);
}
