//! A Rust program of a crate for libibverbs (X18): [`EXAMPLE`], built against the distribution's libraries.

use std::sync::Arc;

use anyhow::{Context, Result};
use qnic_images::{Cache, Provisioner, Silent};

use super::{is_used, LISTENS};
use qnic_trials::nodes::shell::{background, shell};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::LIMIT;

/// Its folder in the checkout, its files there, which cargo knows by other names, and its place in guests.
const EXAMPLE: &str = "examples/verbs";
const FILES: [(&str, &str); 3] = [
    ("echo.rs", "echo.rs"),
    ("echo.toml", "Cargo.toml"),
    ("echo.lock", "Cargo.lock"),
];
const PLACE: &str = "/root/echo";

/// It runs on both guests, each once as the one that asks.
pub(super) fn pass(nodes: &VmNodes) -> Result<()> {
    let checkout = qnic_cluster::repository().context("the checkout is gone")?;
    let scratch = tempfile::tempdir().context("make a directory")?;
    let libraries = Provisioner::new(Cache::of_user()?, Arc::new(Silent)).libibverbs()?;
    for (file, name) in FILES {
        let from = checkout.join(EXAMPLE).join(file);
        std::fs::copy(from, scratch.path().join(name)).context(file)?;
    }
    let mut cargo = qnic_cluster::cargo(scratch.path());
    cargo.args(["build", "--quiet", "--locked", "--target-dir"]);
    cargo.arg(scratch.path()).envs(libraries.variables());
    let built = cargo.output().context("start cargo")?;
    let said = String::from_utf8_lossy(&built.stderr);
    anyhow::ensure!(built.status.success(), "cargo builds no echo.rs: {said}");
    for node in nodes.cluster().nodes() {
        node.put(&scratch.path().join("debug/echo"), PLACE.as_ref(), &|_| {})?;
    }
    for server in [0, 1] {
        let mut serves = background(nodes, server, &format!("exec {PLACE}"))?;
        shell(nodes, server, LISTENS)?;
        shell(nodes, 1 - server, &format!("{PLACE} n{server}"))?;
        serves.succeed("the one that answers", LIMIT)?;
        [0, 1]
            .into_iter()
            .try_for_each(|node| is_used(nodes, node, false))?;
    }
    Ok(())
}
