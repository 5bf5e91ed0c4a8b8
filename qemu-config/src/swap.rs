//! Has each guest with a `swap` disk swap on it, as soon as all guests are ready. A guest that boots again
//! later has the disk, with swapping off.

use crate::boot_options::BootOptions;
use crate::guest_command::GuestCommand;
use crate::node::Node;
use crate::{ClusterSpec, Error, Result};

/// Finds the disk by its serial, as its name depends on how many disks there are.
const SCRIPT: &str =
    "d=$(grep -lx swap /sys/block/*/serial) && d=/dev/$(basename $(dirname $d)) && \
                      mkswap $d >/dev/null && swapon $d";

/// Turns swapping on in the guests of `spec`, which are ready.
pub(crate) fn turn_on(spec: &ClusterSpec, nodes: &[Node], options: &BootOptions) -> Result<()> {
    for node in nodes {
        let swaps = spec.nodes.iter().filter(|it| it.swap.is_some());
        if !swaps.into_iter().any(|it| it.name == node.name()) {
            continue;
        }
        let output = node.run(&GuestCommand::shell(SCRIPT), options.ready_limit)?;
        if !output.exit.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Failed {
                subject: format!("node {}", node.name()),
                what: format!("cannot swap on its disk: {}", why.trim()),
                log: String::new(),
            });
        }
        options.progress.node(node.name(), "swaps on its disk");
    }
    Ok(())
}
