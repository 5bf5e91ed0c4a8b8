//! Fails the build when the two sides of the border differ.
//!
//! - Every function that `border.h` declares has a twin with the same types in
//!   `src/border.rs` (called by Rust) or `src/entry.rs` (called by C), and the
//!   other way round.
//! - The numbers of `abi.h` become Rust constants, which `src/lib.rs` compares
//!   with the crate qnic-abi.

use std::collections::BTreeMap;
use std::{env, fs};

fn main() {
    for file in ["../border.h", "../abi.h", "src/border.rs", "src/entry.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let c = c_functions(&read("../border.h"));
    let mut rust = rust_functions(&read("src/border.rs"));
    rust.extend(rust_functions(&read("src/entry.rs")));
    let mut differences = 0;
    for name in c
        .keys()
        .chain(rust.keys().filter(|name| !c.contains_key(*name)))
    {
        let (in_c, in_rust) = (c.get(name), rust.get(name));
        if in_c != in_rust {
            differences += 1;
            println!("cargo::error={name}: border.h has {in_c:?}, Rust has {in_rust:?}");
        }
    }
    assert!(
        !c.is_empty() && differences == 0,
        "{differences} differences at the border"
    );
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let constants = c_constants(&read("../abi.h"));
    fs::write(format!("{out}/abi_h.rs"), constants).expect("OUT_DIR is writable");
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `#define NAME number` as `const NAME: u64 = number;`.
fn c_constants(header: &str) -> String {
    let defines = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define "));
    defines
        .filter_map(|define| define.split_once(char::is_whitespace))
        .map(|(name, value)| {
            let value = value.trim().trim_end_matches('u');
            format!("const {name}: u64 = {value};\n")
        })
        .collect()
}

/// Drops `/* … */` and lines that start with `#` or `//`.
fn strip(source: &str) -> String {
    let mut text = String::new();
    let mut rest = source;
    while let Some((before, after)) = rest.split_once("/*") {
        text.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    text.lines()
        .filter(|line| !matches!(line.trim_start().as_bytes(), [b'#', ..] | [b'/', b'/', ..]))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Splits at commas that are not within parentheses.
fn split_arguments(list: &str) -> Vec<String> {
    let mut arguments = vec![String::new()];
    let mut depth = 0;
    for c in list.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        arguments.last_mut().expect("never empty").push(c);
    }
    arguments.retain(|argument| !argument.trim().is_empty());
    arguments
}

/// Functions of a C header: name to signature in Rust's notation.
fn c_functions(header: &str) -> BTreeMap<String, String> {
    let mut functions = BTreeMap::new();
    for statement in strip(header).split(';') {
        let Some((front, list)) = statement.split_once('(') else {
            continue;
        };
        let end = list.rfind(')').expect("a prototype ends with )");
        let (list, attributes) = list.split_at(end);
        let front = front.trim();
        let start = front.rfind([' ', '*']).expect("a prototype has a type") + 1;
        let (result, name) = front.split_at(start);
        let arguments: Vec<_> = match list.trim() {
            "void" => Vec::new(),
            list => split_arguments(list)
                .iter()
                .map(|a| c_type(a, true))
                .collect(),
        };
        let result = match c_type(result, false).as_str() {
            "c_void" if attributes.contains("__noreturn") => " -> !".to_owned(),
            "c_void" => String::new(),
            other => format!(" -> {other}"),
        };
        functions.insert(
            name.to_owned(),
            format!("({}){result}", arguments.join(", ")),
        );
    }
    functions
}

/// A C type, with the name of the argument behind it if `named`, in Rust's notation.
fn c_type(text: &str, named: bool) -> String {
    let text = text.trim();
    if let Some((result, rest)) = text.split_once("(*") {
        let (_, list) = rest.split_once(")(").expect("a pointer to a function");
        let list = list.strip_suffix(')').expect("a pointer to a function");
        let arguments: Vec<_> = split_arguments(list)
            .iter()
            .map(|a| c_type(a, false))
            .collect();
        let result = c_type(result, false);
        return format!("extern \"C\" fn({}) -> {result}", arguments.join(", "));
    }
    let stars = text.matches('*').count();
    let mut words: Vec<&str> = text
        .split([' ', '*', '\t'])
        .filter(|w| !w.is_empty())
        .collect();
    if named {
        words.pop();
    }
    let is_const = words.contains(&"const");
    words.retain(|word| !matches!(*word, "const" | "struct"));
    let base = match words.join(" ").as_str() {
        "void" => "c_void".to_owned(),
        "bool" => "bool".to_owned(),
        number @ ("u8" | "u16" | "u32" | "u64") => number.to_owned(),
        "s32" => "i32".to_owned(),
        "s64" => "i64".to_owned(),
        name => camel_case(name),
    };
    let inner = if is_const { "*const " } else { "*mut " };
    match stars {
        0 => base,
        stars => "*mut ".repeat(stars - 1) + inner + &base,
    }
}

fn camel_case(name: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    name.split('_').map(capital).collect()
}

/// Functions that a Rust file declares or defines with the C ABI.
fn rust_functions(source: &str) -> BTreeMap<String, String> {
    let source = strip(source);
    let mut functions = BTreeMap::new();
    for text in source.split("fn qnic_").skip(1) {
        let end = text
            .find(['{', ';'])
            .expect("a function has a body or an end");
        let (name, signature) = text[..end]
            .split_once('(')
            .expect("a function has arguments");
        let close = signature.rfind(')').expect("arguments end with )");
        let (list, result) = match signature.rfind("->") {
            Some(arrow) if arrow > close => (&signature[..close], signature[arrow + 2..].trim()),
            _ => (&signature[..close], ""),
        };
        let arguments: Vec<_> = split_arguments(list)
            .iter()
            .map(|a| {
                a.split_once(':')
                    .expect("an argument has a type")
                    .1
                    .trim()
                    .to_owned()
            })
            .collect();
        let result = match result {
            "" => String::new(),
            result => format!(" -> {result}"),
        };
        let signature = format!("({}){result}", arguments.join(", "));
        functions.insert(format!("qnic_{name}"), signature);
    }
    functions
}
