//! Programs in C of the tests: compiled here against the distribution's libibverbs, and put into guests.

use std::sync::Arc;

use anyhow::{Context, Result};
use qnic_images::{Cache, Provisioner, Silent};

use super::is_used;
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;

/// Puts the program `NAME.c` into all guests, as `/root/NAME`.
pub(super) fn put(nodes: &VmNodes, name: &str) -> Result<()> {
    let checkout = qnic_cluster::repository().context("the checkout is gone")?;
    let scratch = tempfile::tempdir().context("make a directory")?;
    let compiled = scratch.path().join(name);
    let source = checkout.join(format!("tests/src/vm/verbs/{name}.c"));
    let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
    provisioner.libibverbs()?.compile(&source, &compiled)?;
    let place = format!("/root/{name}");
    let mut nodes = nodes.cluster().nodes().iter();
    nodes.try_for_each(|node| Ok(node.put(&compiled, place.as_ref(), &|_| {})?))
}

/// A program hears of a send queue that drains, of an access that may not be, of a completion queue that overruns, of
/// the queue pair that needs it, and of a shared receive queue that has fewer than its limit.
pub(super) fn hear_of_their_objects(nodes: &VmNodes) -> Result<()> {
    put(nodes, "events")?;
    for node in [0, 1] {
        shell(nodes, node, "/root/events")?;
        is_used(nodes, node, false)?;
    }
    Ok(())
}
