//! What `make install` puts somewhere is all that a C program needs.

use std::process::Command;

use crate::cluster::{file, library, Cluster, Program};

/// Runs a command that succeeds; returns what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[cfg_attr(
    not(has_pkg_config),
    ignore = "no C compiler, no make, or no pkg-config"
)]
fn an_installed_library_is_all_that_a_program_needs() {
    let cluster = Cluster::new();
    let prefix = cluster.folder().join("usr");
    let mut install = Command::new("make");
    install.arg("install").current_dir(file(""));
    install.arg(format!("PREFIX={}", prefix.display()));
    install.arg(format!("STATICLIB={}", library().display()));
    run(&mut install);

    let package = prefix.join("lib/pkgconfig");
    let ask = |what: &str| {
        let mut ask = Command::new("pkg-config");
        run(ask.args([what, "libqnic"]).env("PKG_CONFIG_PATH", &package))
            .trim()
            .to_owned()
    };
    assert_eq!(ask("--modversion"), env!("CARGO_PKG_VERSION"));
    let program = cluster.folder().join("hello");
    let mut compile = Command::new("cc");
    compile
        .arg(file("examples/hello.c"))
        .arg("-o")
        .arg(&program);
    compile
        .args(ask("--cflags").split(' '))
        .args(ask("--libs").split(' '));
    compile.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    run(&mut compile);
    let programs = [(0, "1"), (1, "0")].map(|(node, peer)| cluster.start(&program, node, &[peer]));
    assert_eq!(
        programs.map(Program::finish),
        ["hello from node 1\n", "hello from node 0\n"]
    );
}
