//! Nodes with two NICs on two networks, of which one is cut (S7).

use anyhow::{ensure, Context, Result};

use super::demo_between;
use qnic_trials::nodes::{Nodes, OnNic, LIMIT};

/// The first network of nodes 0 and 1 is cut and healed again by `cut`. Programs on their other NICs,
/// whose name is `beside`, do all that the demo does meanwhile.
pub(crate) fn one_network_is_partitioned_and_the_other_goes_on(
    nodes: &dyn Nodes,
    beside: &str,
    cut: &dyn Fn(bool) -> Result<()>,
) -> Result<()> {
    let other = OnNic(nodes, beside);
    let demo = |nodes: &dyn Nodes| demo_between(nodes, [0, 1], "1,97,4096,65537", 1 << 20);
    demo(nodes).context("before")?;
    cut(true)?;
    let mut ping = nodes.start(0, "ping 1 --timeout 1")?;
    let ended = ping.wait(LIMIT)?;
    ensure!(ended.status == 1, "across the cut: {ended:?}");
    demo(&other).context("the other network, while the first is cut")?;
    cut(false)?;
    demo(nodes).context("after")
}
