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
        let named = arguments.iter().map(|(name, of)| format!("{name}: {of}"));
        let list = named.collect::<Vec<_>>().join(", ");
        writeln!(ffi, "    pub(crate) fn {name}({list}){result};").unwrap();
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
        let of = format!("unsafe extern \"C\" fn({}){result}", list.join(", "));
        writeln!(types, "const _: {of} = {name};").unwrap();
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

/// The functions that a C header declares, each in one line.
fn functions(header: &str) -> Vec<Function> {
    let lines = header.lines().filter_map(|line| line.strip_suffix(';'));
    let prototypes = lines.filter_map(|line| line.split_once('('));
    let parsed = prototypes.map(|(front, list)| {
        let (list, attributes) = list.rsplit_once(')').expect("a prototype has )");
        let (name, result) = declaration(front);
        let result = match result.as_str() {
            "c_void" if attributes.contains("__noreturn") => " -> !".to_owned(),
            "c_void" => String::new(),
            other => format!(" -> {other}"),
        };
        let arguments = list.split(", ").filter(|argument| *argument != "void");
        Function {
            name,
            arguments: arguments.map(declaration).collect(),
            result,
        }
    });
    parsed.collect()
}

/// Name and type of a C declaration such as `const u8 *config` or
/// `bool (*ready)(const void *)`.
fn declaration(text: &str) -> (String, String) {
    if let Some((result, rest)) = text.split_once(" (*") {
        let (name, argument) = rest.split_once(")(").expect("a pointer to a function");
        let argument = argument.strip_suffix(')').expect("a pointer to a function");
        let (argument, result) = (rust_type(argument), rust_type(result));
        let pointer = format!("extern \"C\" fn({argument}) -> {result}");
        return (name.to_owned(), pointer);
    }
    let start = text.rfind([' ', '*']).expect("a declaration has a type") + 1;
    (text[start..].to_owned(), rust_type(&text[..start]))
}

fn rust_type(text: &str) -> String {
    let stars = text.matches('*').count();
    let mut words: Vec<&str> = text.split([' ', '*']).filter(|w| !w.is_empty()).collect();
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
