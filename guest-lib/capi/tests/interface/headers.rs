//! Headers are those that cbindgen makes of the sources, and compile by themselves.

use std::sync::{Mutex, PoisonError};

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use expect_test::expect_file;

use crate::families::{file, source, FAMILIES};

/// The types of the border as C has them: cbindgen would make a typedef of each.
const POINTERS: [(&str, &str); 2] = [("In", "*const "), ("Out", "*mut ")];

/// A source with the pointers that C sees.
fn in_c(text: &str) -> String {
    let mut text = text
        .replace(": Text", ": *const c_char")
        .replace(": Context", ": *mut c_void");
    for (wrapper, pointer) in &POINTERS {
        let start = format!("{wrapper}<");
        // The innermost first.
        while let Some((at, end)) = innermost(&text, &start) {
            let inside = text[at + start.len()..end].to_owned();
            text.replace_range(at..=end, &format!("{pointer}{inside}"));
        }
    }
    text
}

/// Where the first `start` stands that has no other angle brackets inside.
fn innermost(text: &str, start: &str) -> Option<(usize, usize)> {
    let places = text.match_indices(start).map(|(at, _)| at);
    let begins_a_word = |at: &usize| !text[..*at].ends_with(|c: char| c.is_alphanumeric());
    places.filter(begins_a_word).find_map(|at| {
        let rest = &text[at + start.len()..];
        let end = rest.find(['<', '>', ';', '{'])?;
        rest[end..]
            .starts_with('>')
            .then_some((at, at + start.len() + end))
    })
}

/// The documentation of the file as a comment.
fn introduction(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| format!("//{line}\n")).collect()
}

fn header(name: &str, sources: &[&str], before: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config {
        language: Language::C,
        style: Style::Type,
        cpp_compat: true,
        documentation_style: DocumentationStyle::C99,
        usize_is_size_t: true,
        no_includes: true,
        line_length: 100,
        include_guard: Some(format!("QNIC_{}_H", name.to_uppercase())),
        ..Config::default()
    };
    let mut introductions = String::new();
    let mut builder = Builder::new();
    for source_name in sources {
        let text = source(source_name);
        introductions += &introduction(&text);
        let path = folder.path().join(format!("{source_name}.rs"));
        std::fs::write(&path, in_c(&text)).unwrap();
        builder = builder.with_src(path);
    }
    config.header = Some(format!(
        "// Made by cbindgen of src/{}.rs: change that, then UPDATE_EXPECT=1 cargo test.\n//\n{}",
        sources.join(".rs, src/"),
        introductions.trim_end()
    ));
    let includes = ["stddef", "stdint"]
        .map(|name| format!("#include <{name}.h>\n"))
        .concat();
    let own: String = before
        .iter()
        .map(|name| format!("#include \"{name}.h\"\n"))
        .collect();
    config.after_includes = Some(format!("{includes}{own}").trim_end().to_owned());
    let mut made = Vec::new();
    builder
        .with_config(config)
        .generate()
        .unwrap()
        .write(&mut made);
    String::from_utf8(made).unwrap()
}

/// Tests that read headers look at this first, so that one run renews all files.
pub(crate) fn check() {
    static CHECKED: Mutex<()> = Mutex::new(());
    let _checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut before: Vec<&str> = Vec::new();
    let mut all = String::from(
        "// The C interface of qnic: docs/c-api.md.\n\n#ifndef QNIC_H\n#define QNIC_H\n\n",
    );
    for (name, sources) in FAMILIES {
        let last = before.last().copied();
        let path = file(&format!("include/qnic/{name}.h"));
        expect_file![path].assert_eq(&header(name, sources, last.as_slice()));
        before.push(name);
        all += &format!("#include \"qnic/{name}.h\"\n");
    }
    expect_file![file("include/qnic.h")].assert_eq(&(all + "\n#endif\n"));
}

#[test]
fn headers_are_those_of_the_sources() {
    check();
}
