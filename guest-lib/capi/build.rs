//! Finds out which tests can run here: those that compile C need a C compiler.

use std::process::{Command, Stdio};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for (name, compiler, flags) in [
        ("has_c", "cc", ["-std=c11", "-fsyntax-only"]),
        ("has_cxx", "c++", ["-std=c++17", "-fsyntax-only"]),
        ("has_asan", "cc", ["-fsanitize=address", "-o"]),
    ] {
        say(name, compiles(compiler, &flags));
    }
    let has_c = compiles("cc", &["-fsyntax-only"]);
    let has_make = has_c && is_there("make");
    say("has_make", has_make);
    say("has_pkg_config", has_make && is_there("pkg-config"));
    say("has_valgrind", has_c && is_there("valgrind"));
}

/// Returns true if there is a tool of this name.
fn is_there(tool: &str) -> bool {
    let status = Command::new(tool)
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Says that there is something, or not.
fn say(name: &str, is_there: bool) {
    println!("cargo:rustc-check-cfg=cfg({name})");
    if is_there {
        println!("cargo:rustc-cfg={name}");
    }
}

/// Returns true if the compiler takes an empty program with these flags.
fn compiles(compiler: &str, flags: &[&str]) -> bool {
    let Some(folder) = std::env::var_os("OUT_DIR") else {
        return false;
    };
    let folder = std::path::Path::new(&folder);
    let source = folder.join("empty.c");
    if std::fs::write(&source, "int main(void) { return 0; }\n").is_err() {
        return false;
    }
    let mut command = Command::new(compiler);
    command.args(flags);
    if flags.contains(&"-o") {
        command.arg(folder.join("empty"));
    }
    let status = command.arg(&source).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
