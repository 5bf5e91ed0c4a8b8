//! The checks on small trees and texts that are made up.

use qnic_structure::modules::{between_children, circles, Arrow, Tree};
use qnic_structure::packages::{misplaced, packages, packages_with_circles};
use qnic_structure::prose::Rules;
use qnic_structure::sources::Source;
use qnic_structure::{surface, tidy, tour};
use tempfile::TempDir;

fn source(path: &str, text: &str) -> Source {
    let (path, text) = (path.to_owned(), text.to_owned());
    Source { path, text }
}

fn tree(files: &[(&str, &str)]) -> Tree {
    Tree::read(&checkout(files).path().join("lib.rs")).unwrap()
}

fn checkout(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    directory
}

/// Arrows as "from to".
fn short<'a>(arrows: impl IntoIterator<Item = &'a Arrow>) -> Vec<String> {
    let pair = |arrow: &Arrow| format!("{} {}", arrow.from, arrow.to).replace("crate::", "");
    arrows.into_iter().map(pair).collect()
}

fn circle_of(arrows: &[Arrow]) -> Vec<String> {
    circles(arrows)
        .iter()
        .flat_map(|circle| short(&circle.way))
        .collect()
}

/// Arrows of a crate with a module of this text, and one with a type.
fn arrows_of(a: &str) -> Vec<String> {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", a),
        ("b.rs", "pub struct B;"),
    ];
    short(&tree(&files).arrows())
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
        assert_eq!(arrows_of(code), ["a b"], "{code}");
    }
}

#[test]
fn tests_other_crates_and_variables_draw_none() {
    for code in [
        "use std::fmt; use serde::b::B;",
        "#[cfg(test)] mod tests { use crate::b::B; }",
        "#[cfg(any(test, feature = \"testing\"))] mod testing;",
        "#[cfg(test)] use crate::b::B;",
        "struct A; impl A { #[cfg(test)] fn f() { crate::b::B; } }",
        "pub(in crate::b) struct C;",
        "fn f(b: u8) -> u8 { assert!(b > 0); b }",
        "/// [`crate::b::B`]\npub struct C;",
    ] {
        assert_eq!(arrows_of(code), [""; 0], "{code}");
    }
}

#[test]
fn a_circle_is_found() {
    let with = |b| {
        let a = "use crate::b::B; pub struct A;";
        circle_of(&tree(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]).arrows())
    };
    assert_eq!(with("pub struct B;"), [""; 0]);
    assert_eq!(
        with("pub struct B; fn f() { crate::a::A; }"),
        ["a b", "b a"]
    );
    let root =
        "mod a { use crate::b::B; pub struct A; } mod b; mod c { pub struct C(crate::a::A); }";
    let longer = tree(&[
        ("lib.rs", root),
        ("b/mod.rs", "mod d; pub use d::B;"),
        ("b/d.rs", "use crate::c::C; pub struct B;"),
    ]);
    assert_eq!(circle_of(&longer.arrows()), ["a b", "b c", "c a"]);
}

/// Wherever a package is, and in whichever of its crates.
#[test]
fn a_circle_in_any_package_is_found() {
    const A: &str = "use crate::b::B; pub struct A;";
    const B: &str = "use crate::a::A; pub struct B;";
    let with_circle_in = |package: &str| {
        let mut files = Vec::new();
        for (folder, root) in [
            ("abi", "src/lib.rs"),
            ("qemu-config/exec", "src/main.rs"),
            ("guest-driver/linux/kernel", "src/lib.rs"),
            ("tests/fuzz", "tests/replay/main.rs"),
            ("links", "examples/scale.rs"),
        ] {
            let name = folder.replace('/', "-");
            let b = if name == package { B } else { "pub struct B;" };
            let below = root.rsplit_once('/').unwrap().0;
            files.extend([
                (
                    format!("{folder}/Cargo.toml"),
                    format!("[package]\nname = \"{name}\"\n"),
                ),
                (format!("{folder}/{root}"), "mod a; mod b;".to_owned()),
                (format!("{folder}/{below}/a.rs"), A.to_owned()),
                (format!("{folder}/{below}/b.rs"), b.to_owned()),
            ]);
        }
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (&**path, &**text))
            .collect();
        let found = packages_with_circles(checkout(&files).path()).unwrap();
        found
            .into_iter()
            .map(|(name, circles)| (name, circles.len()))
            .collect::<Vec<_>>()
    };
    assert_eq!(with_circle_in("none"), []);
    for package in [
        "abi",
        "qemu-config-exec",
        "guest-driver-linux-kernel",
        "tests-fuzz",
        "links",
    ] {
        assert_eq!(with_circle_in(package), [(package.to_owned(), 1)]);
    }
}

#[test]
fn packages_in_the_wrong_place_are_found() {
    let packages_of = |needs: &str| {
        let files = [
            ("abi/Cargo.toml", "[package]\nname = \"qnic-abi\"\n"),
            (
                "guest-lib/Cargo.toml",
                "[package]\nname = \"qnic\"\n[dependencies]\nqnic-abi = \"1\"\n",
            ),
            (
                "tests/fixtures/Cargo.toml",
                "[package]\nname = \"qnic-fixtures\"\n[dependencies]\nqnic = \"1\"\n",
            ),
            (
                "device-backend/nic/Cargo.toml",
                &format!("[package]\nname = \"qnic-nic\"\n{needs}"),
            ),
        ];
        packages(checkout(&files).path()).unwrap()
    };
    let document = "| `abi/` (qnic-abi) | … |\n| `device-backend/nic` (qnic-nic) | … |\n\
                    | `guest-lib/` (qnic) | … |\n| `tests/fixtures` (qnic-fixtures) | … |\n";
    let wrong = |needs: &str, document: &str| misplaced(&packages_of(needs), document);
    for needs in [
        "[dependencies]\nqnic-abi = \"1\"",
        "[dev-dependencies]\nqnic-fixtures = \"1\"",
    ] {
        assert_eq!(wrong(needs, document), [""; 0], "{needs}");
    }
    let below = "qnic-nic needs qnic-fixtures, which stands below it";
    let test = "qnic-nic is of the product, and needs qnic-fixtures";
    for needs in [
        "[dependencies]\nqnic-fixtures = \"1\"",
        "[build-dependencies]\nother = { version = \"1\", package = \"qnic-fixtures\" }",
        "[target.'cfg(unix)'.dependencies]\nqnic-fixtures = \"1\"",
    ] {
        assert_eq!(wrong(needs, document), [below, test], "{needs}");
    }
    assert_eq!(
        wrong("", &document.replace("(qnic-nic)", "(qnic-nick)")),
        [
            "device-backend/nic (qnic-nic) has 0 rows",
            "device-backend/nic (qnic-nick) is no package"
        ]
    );
    let named = [("abi/pool/Cargo.toml", "[package]\nname = \"qnic-pools\"\n")];
    let named = packages(checkout(&named).path()).unwrap();
    let row = "| `abi/pool` (qnic-pools) | … |";
    assert_eq!(
        misplaced(&named, row),
        ["abi/pool: the package is qnic-pools, not qnic-pool"]
    );
}

#[test]
fn a_word_for_people_is_found() {
    let rules = "words = [\"whoever\", \"who\"]\npeople = [\"users who\"]";
    let rules = Rules::parse(rules).unwrap();
    let found = |path: &str, text: &str| rules.found(&source(path, text), &mut Vec::new());
    for text in [
        "// Whoever rings the doorbell wakes it.",
        "fn f() {\n    g(); /* it is whoever sends */\n}",
        "/// It wakes\n/// whoever waits.\nfn f() {}",
        "fn f() -> &'static str { \"end whoever runs\" }",
    ] {
        assert_eq!(found("a.rs", text).len(), 1, "{text}");
    }
    assert_eq!(
        found("a.md", "A NIC\nwho sends"),
        ["a.md:2: a nic who sends"]
    );
    for text in [
        "fn f(who: u8) -> u8 { who }",
        "// The field `who` of an end.",
        "fn f(who: u8) { panic!(\"{who:?} and {who}\") }",
        "// For users\n// who read it.",
        "fn f() -> &'static str { \"for users\\nwho\" }",
    ] {
        assert_eq!(found("a.rs", text), [""; 0], "{text}");
    }
}

/// A parent declares, re-exports and uses its children, and they extend it.
#[test]
fn a_parent_and_its_children_are_one_room() {
    let with = |parent| {
        let child = "use super::A; use super::C; pub struct B;";
        let files = [("a/b.rs", child), ("a/c.rs", "pub struct C;")];
        tree(&[&files[..], &[("lib.rs", "mod a;"), ("a/mod.rs", parent)]].concat()).arrows()
    };
    let facade = with("mod b; mod c; pub(crate) use b::B; pub use self::c::*; pub struct A;");
    assert_eq!(short(&facade), ["a::b a", "a::b a::c"]);
    let user = with("mod b; mod c; pub(crate) use b::B; pub use c::C; pub struct A(B);");
    assert_eq!(short(&user), ["a a::b", "a::b a", "a::b a::c"]);
    assert_eq!(circle_of(&user), [""; 0]);
}

#[test]
fn folders_can_stand_in_a_circle_though_their_files_do_not() {
    let a = "pub mod x { use crate::c::b::y::Y; } pub mod z { pub struct Z; }";
    let b = "pub mod y { pub struct Y; } mod w { use crate::c::a::z::Z; }";
    let files = [
        ("lib.rs", "mod c { mod a; mod b; }"),
        ("c/a.rs", a),
        ("c/b.rs", b),
    ];
    assert_eq!(circle_of(&tree(&files).arrows()), ["a b", "b a"]);
}

#[test]
fn protocols_that_import_each_other_are_found() {
    let with = |rdma: &str| {
        let all = "mod rdma; mod atomic; use rdma::Rdma; struct All(Rdma, atomic::Word);";
        let tree = tree(&[
            ("lib.rs", "mod core { pub struct Job; } mod protocols;"),
            ("protocols/mod.rs", all),
            ("protocols/rdma/mod.rs", rdma),
            (
                "protocols/rdma/write.rs",
                "use super::Rdma; use crate::core::Job;",
            ),
            ("protocols/atomic.rs", "pub struct Word;"),
        ]);
        short(&between_children(&tree.arrows(), "crate::protocols"))
    };
    assert_eq!(with("mod write; pub struct Rdma;"), [""; 0]);
    let crossing = with("mod write; pub struct Rdma(super::atomic::Word);");
    assert_eq!(crossing, ["rdma atomic"]);
}

#[test]
fn fields_that_are_not_private_are_found() {
    let fields = |nic: &str| tree(&[("lib.rs", nic)]).open_fields("Nic");
    assert_eq!(
        fields("pub struct Nic<'a> { a: &'a u8, b: u8 }"),
        Ok(vec![])
    );
    let open = fields("pub struct Nic { pub(crate) a: u8, b: u8, pub(super) c: u8 }");
    assert_eq!(open, Ok(vec!["a".to_owned(), "c".to_owned()]));
    assert!(fields("pub struct Nick;").is_err());
}

#[test]
fn public_methods_of_all_impls_are_counted() {
    let a = source(
        "a.rs",
        "impl Nic { pub fn a(&self) {} fn b(&self) {} pub(crate) fn c() {} }",
    );
    let b = source(
        "b.rs",
        "impl<'a> super::Nic<'a> { pub fn d(&self) {} } impl Nick { pub fn e() {} }",
    );
    let c = source("c.rs", "impl Drop for Nic { fn drop(&mut self) {} }");
    let methods = surface::public_methods(&[a, b, c], "Nic").unwrap();
    assert_eq!(methods, ["a.rs: a", "b.rs: d"]);
}

#[test]
fn a_long_function_and_a_dead_link_are_found() {
    let body = "    let _ = 1;\n".repeat(tidy::MAX_FUNCTION);
    let text = format!("fn short() {{}}\nimpl X {{\nfn long() {{\n{body}}}\n}}\n");
    let long = tidy::long_functions(&source("a.rs", &text)).unwrap();
    assert_eq!(long, ["a.rs:3 long (72)"]);
    let document = "# Tidy things\n[a](made_up.rs) [b](none.rs#x) [c](https://x.y/z)\n\
                    [d](#tidy-things) [e](#none)\n```\n[f](code)\n```\n    [g](code)\n";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("d.md"), document).unwrap();
    std::fs::write(dir.path().join("made_up.rs"), "").unwrap();
    let dead = tidy::dead_links(dir.path(), &source("d.md", document));
    assert_eq!(dead, ["d.md: none.rs#x", "d.md: #none"]);
}

#[test]
fn a_stop_of_the_tour_has_to_exist() {
    let tree = checkout(&[
        ("a.rs", "struct A; impl A { fn go(&self) {} }"),
        ("b.c", "int stop(void)\n{\n\treturn other();\n}\n"),
    ]);
    let errors = |stops: &str| tour::errors(tree.path(), &format!("# Tour\n\n{stops}"));
    let two = "1. [`go`](a.rs): begins\n2. [`stop`](b.c): ends\n";
    assert!(errors(&format!("## A way: 2 files\n\n{two}")).is_empty());
    for (wrong, error) in [
        (
            "## A way: 1 files\n1. [`went`](a.rs): x",
            "no function went in a.rs",
        ),
        (
            "## A way: 1 files\n1. [`go`](c.rs): x",
            "no function go in c.rs",
        ),
        (
            "## A way: 1 files\n1. [`other`](b.c): x",
            "no function other in b.c",
        ),
        (
            "## A way: 2 files\n1. [`go`](a.rs): x",
            "the stops are in 1 files",
        ),
        ("## A way: 0 files\n1. it goes", "no link to a function"),
        ("## A way: 0 files\nnone", "the stops are in 0 files"),
    ] {
        let found = errors(wrong);
        assert!(found[0].contains(error), "{wrong}: {found:?}");
    }
}
