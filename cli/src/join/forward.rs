//! Options of `qnic forward`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use clap::Args;

use crate::ui::ClusterOption;

/// Options of `qnic forward`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo qnic forward n0:22 127.0.0.1:2222      then: ssh -p 2222 root@127.0.0.1
  cargo qnic forward n0:80 n1:80               ports that are free, printed
  cargo qnic forward n0:5201 0.0.0.0:5201      also from other machines

A connection to the address here is one to a TCP server in the guest, until Ctrl-C. It
comes to the guest from an address at the end of its network; the guest needs
an Ethernet port (docs/ethernet.md), and nothing of qnic. The links of the cluster have no
part in this: a node that is cut off is reached, too.

Exit status: 0 when it was ended with Ctrl-C, 1 if a node or address cannot be had, 2 for a
wrong command line.")]
pub struct Options {
    /// NODE:PORT in the guest, and then ADDRESS:PORT here (left out: a free port of 127.0.0.1)
    #[arg(required = true, value_name = "NODE:PORT [ADDRESS:PORT]")]
    pub ends: Vec<End>,
    /// The cluster; needed if several run
    #[command(flatten)]
    pub cluster: ClusterOption,
}

/// An end of a forwarded port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A TCP port of a node.
    Node(String, u16),
    /// An address of this machine; port 0 is a free one.
    Here(SocketAddr),
}

/// A text is no end.
#[derive(Debug, PartialEq, Eq)]
pub struct NotAnEnd;

impl fmt::Display for NotAnEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .write_str("expected NODE:PORT such as n0:22, or ADDRESS:PORT such as 127.0.0.1:2222")
    }
}

impl std::error::Error for NotAnEnd {}

impl FromStr for End {
    type Err = NotAnEnd;

    fn from_str(text: &str) -> Result<Self, NotAnEnd> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Here(address));
        }
        let (node, port) = text.rsplit_once(':').ok_or(NotAnEnd)?;
        match port.parse() {
            Ok(port) if port > 0 && !node.is_empty() => Ok(Self::Node(node.to_owned(), port)),
            _ => Err(NotAnEnd),
        }
    }
}

/// A port of a node, and the address here from which it is reached.
pub type Forwarded = (String, u16, SocketAddr);

/// The pairs that a command line names.
///
/// # Errors
/// Returns the address that follows no port of a node.
pub fn pairs(ends: &[End]) -> Result<Vec<Forwarded>, SocketAddr> {
    let mut pairs: Vec<Forwarded> = Vec::new();
    let mut is_open = false;
    for end in ends {
        match (end, pairs.last_mut().filter(|_| is_open)) {
            (End::Node(node, port), _) => {
                let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                pairs.push((node.clone(), *port, anywhere));
                is_open = true;
            }
            (End::Here(here), Some((_, _, address))) => {
                *address = *here;
                is_open = false;
            }
            (End::Here(here), None) => return Err(*here),
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_understood() {
        assert_eq!("n0:22".parse(), Ok(End::Node("n0".into(), 22)));
        let here = "127.0.0.1:2222".parse().unwrap();
        assert_eq!("127.0.0.1:2222".parse(), Ok(End::Here(here)));
        assert_eq!(
            "[::1]:2222".parse(),
            Ok(End::Here("[::1]:2222".parse().unwrap()))
        );
        for wrong in ["", "n0", "n0:", "n0:0", "n0:65536", ":22", "127.0.0.1"] {
            assert_eq!(wrong.parse::<End>(), Err(NotAnEnd), "{wrong}");
        }
    }

    #[test]
    fn an_address_goes_with_the_port_before_it() {
        let pairs = |text: &str| {
            let ends: Vec<End> = text.split(' ').map(|end| end.parse().unwrap()).collect();
            let pairs = super::pairs(&ends)?.into_iter();
            Ok(pairs
                .map(|(node, port, here)| format!("{node} {port} {here}"))
                .collect::<Vec<_>>())
        };
        let expected = ["a 1 127.0.0.1:0", "b 2 127.0.0.1:3", "a 4 127.0.0.1:0"];
        assert_eq!(pairs("a:1 b:2 127.0.0.1:3 a:4").unwrap(), expected);
        let wrong: SocketAddr = "127.0.0.1:3".parse().unwrap();
        assert_eq!(pairs("127.0.0.1:3 a:1"), Err(wrong));
        assert_eq!(pairs("a:1 127.0.0.1:2 127.0.0.1:3"), Err(wrong));
    }
}
