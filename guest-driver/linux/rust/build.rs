//! Makes the Rust side of the C headers, so that the two cannot differ.
//!
//! | header | generated | used by |
//! |---|---|---|
//! | `ffi.h`, functions of the shim | declarations, opaque types, constants | `src/ffi.rs` |
//! | `ffi.h`, functions `qnic_rs_…` | for each a constant of its type, which the compiler compares | `src/entry.rs` |
//! | `abi.h` | constants, which are compared with the crate qnic-abi | `src/lib.rs` |

use std::collections::BTreeSet;
use std::fmt::Write;
use std::{env, fs};

fn main() {
    for file in ["../ffi.h", "../abi.h"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let header = read("../ffi.h");
    let functions = functions(&header);
    let (entries, shim): (Vec<_>, Vec<_>) = functions
        .iter()
        .partition(|function| function.name.starts_with("qnic_rs_"));
    assert!(
        !entries.is_empty() && !shim.is_empty(),
        "ffi.h is not understood"
    );

    let mut ffi = constants(&header, "i32");
    for name in opaque_types(&header) {
        let name = camel_case(name);
        writeln!(ffi, "#[repr(C)]\npub(crate) struct {name}([u8; 0]);").unwrap();
    }
    ffi.push_str("extern \"C\" {\n");
    for Function {
        name,
        arguments,
        result,
    } in shim
    {
        let list: Vec<_> = arguments
            .iter()
            .map(|(name, of)| format!("{name}: {of}"))
            .collect();
        writeln!(
            ffi,
            "    pub(crate) fn {name}({}){result};",
            list.join(", ")
        )
        .unwrap();
    }
    ffi.push_str("}\n");
    write("ffi.rs", &ffi);

    let mut types = String::new();
    for Function {
        name,
        arguments,
        result,
    } in entries
    {
        let list: Vec<_> = arguments.iter().map(|(_, of)| of.as_str()).collect();
        let list = list.join(", ");
        writeln!(
            types,
            "const _: unsafe extern \"C\" fn({list}){result} = {name};"
        )
        .unwrap();
    }
    write("entry.rs", &types);
    write("abi_h.rs", &constants(&read("../abi.h"), "u64"));
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn write(name: &str, text: &str) {
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(format!("{out}/{name}"), text).expect("OUT_DIR is writable");
}

/// `#define NAME number` as a constant of this type.
fn constants(header: &str, of: &str) -> String {
    let defines = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define "));
    defines
        .filter_map(|define| {
            let mut words = define.split_whitespace();
            let (name, value) = (words.next()?, words.next()?.trim_end_matches('u'));
            Some(format!("pub(crate) const {name}: {of} = {value};\n"))
        })
        .collect()
}

/// Names of the structs that a header declares and does not define.
fn opaque_types(header: &str) -> BTreeSet<&str> {
    header
        .lines()
        .filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(';'))
        .filter(|name| !name.contains(' '))
        .collect()
}

/// A function in Rust's notation.
struct Function {
    name: String,
    /// Names and types.
    arguments: Vec<(String, String)>,
    /// Empty, or with the arrow.
    result: String,
}

/// Drops `/* … */` and lines that start with `#`.
fn strip(source: &str) -> String {
    let mut text = String::new();
    let mut rest = source;
    while let Some((before, after)) = rest.split_once("/*") {
        text.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.collect::<Vec<_>>().join(" ")
}

/// The functions that a C header declares.
fn functions(header: &str) -> Vec<Function> {
    let text = strip(header);
    let prototypes = text
        .split(';')
        .filter_map(|statement| statement.split_once('('));
    let parsed = prototypes.map(|(front, list)| {
        let end = list.rfind(')').expect("a prototype ends with )");
        let (list, attributes) = list.split_at(end);
        let (name, result) = declaration(front);
        let result = match result.as_str() {
            "c_void" if attributes.contains("__noreturn") => " -> !".to_owned(),
            "c_void" => String::new(),
            other => format!(" -> {other}"),
        };
        let arguments = split_arguments(list);
        let arguments = arguments
            .iter()
            .filter(|argument| argument.trim() != "void");
        Function {
            name,
            arguments: arguments.map(|argument| declaration(argument)).collect(),
            result,
        }
    });
    parsed.collect()
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
    arguments
}

/// Name and type of a C declaration such as `const u8 *config`.
fn declaration(text: &str) -> (String, String) {
    let text = text.trim();
    if let Some((result, rest)) = text.split_once("(*") {
        let (name, list) = rest.split_once(")(").expect("a pointer to a function");
        let list = list.strip_suffix(')').expect("a pointer to a function");
        let types: Vec<_> = split_arguments(list)
            .iter()
            .map(|of| rust_type(of))
            .collect();
        let pointer = format!(
            "extern \"C\" fn({}) -> {}",
            types.join(", "),
            rust_type(result)
        );
        return (name.to_owned(), pointer);
    }
    let start = text.rfind([' ', '*']).expect("a declaration has a type") + 1;
    (text[start..].to_owned(), rust_type(&text[..start]))
}

fn rust_type(text: &str) -> String {
    let stars = text.matches('*').count();
    let mut words: Vec<&str> = text
        .split([' ', '*', '\t'])
        .filter(|w| !w.is_empty())
        .collect();
    let is_const = words.contains(&"const");
    words.retain(|word| !matches!(*word, "const" | "struct"));
    let base = match words.join(" ").as_str() {
        "void" => "c_void".to_owned(),
        name @ ("bool" | "u8" | "u16" | "u32" | "u64") => name.to_owned(),
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
