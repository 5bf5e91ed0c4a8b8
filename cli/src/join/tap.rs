//! Options of `qnic tap`.

use clap::Args;

use crate::ui::ClusterOption;

/// Options of `qnic tap`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sudo cargo qnic tap n0                       then: ping 10.71.0.1
  sudo cargo qnic tap n0 --name lab0
  unshare -rn cargo qnic tap n0                in a network namespace, without privileges

Makes a network interface of this machine on the Ethernet that the node's port is on, with
an address at the end of its network, until Ctrl-C. All programs of this machine reach the
guests by it, and the guests reach this machine. The links of the cluster have no part in
this. It needs the right to make interfaces (CAP_NET_ADMIN): \"forward\" and \"ssh\" do not.

Exit status: 0 when it was ended with Ctrl-C, 1 if node or interface cannot be had, 2 for a
wrong command line.")]
pub struct Options {
    /// The node whose Ethernet it joins
    pub node: String,
    /// Name of the interface
    #[arg(long, default_value = "qnic0", value_parser = interface_name)]
    pub name: String,
    /// The cluster; needed if several run
    #[command(flatten)]
    pub cluster: ClusterOption,
}

/// Bytes of an interface's name (IFNAMSIZ, without the last one).
const LONGEST: usize = 15;

fn interface_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match text.len() {
        1..=LONGEST if text.bytes().all(is_plain) && !text.starts_with('.') => Ok(text.to_owned()),
        _ => Err(format!(
            "expected 1 to {LONGEST} letters, digits or -_., such as qnic0"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_interfaces() {
        for good in ["qnic0", "a", "lab-net.7_x", "fifteen-letters"] {
            assert_eq!(interface_name(good).as_deref(), Ok(good));
        }
        for wrong in ["", "sixteen--letters", "a b", "a/b", "..", "tap%d", "ä"] {
            assert!(interface_name(wrong).is_err(), "{wrong}");
        }
    }
}
