//! A cluster whose file says `mpi = true` (X15): its nodes with the guest image and the module have MPI.

use qnic_config::{require, ConfigError};

use super::spec::ClusterSpec;
use crate::ByteSize;

/// Least memory of a guest with MPI: the image is in it twice while it boots.
const MEMORY: ByteSize = ByteSize::mib(384);

/// Checks that the nodes with MPI can start processes on each other. `origin` tells which `[[node]]` of the file a
/// node came from.
pub(super) fn check(
    spec: &ClusterSpec,
    origin: &dyn Fn(usize) -> usize,
) -> Result<(), ConfigError> {
    if !spec.mpi {
        return Ok(());
    }
    let nodes = spec.nodes.iter().enumerate();
    let mut nodes = nodes.filter(|(_, node)| node.has_module()).peekable();
    let message = "no node has the guest image and a NIC with the module: MPI needs them";
    require(nodes.peek().is_some(), "mpi", message)?;
    for (index, node) in nodes {
        let has_port = spec.ethernet_port(&node.name).is_some();
        let message = "with mpi = true, processes are started over the Ethernet port: remove \
                       ethernet = false from the cluster or from this node";
        require(
            has_port,
            format!("node[{}].ethernet", origin(index)),
            message,
        )?;
        require(
            node.memory >= MEMORY,
            format!("node[{}].memory", origin(index)),
            format!("the guest image with MPI needs {MEMORY} or more: write memory = \"512MiB\""),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_errors, parse};

    #[test]
    fn nodes_with_mpi_have_ports() {
        let good =
            "name = \"c\"\nmpi = true\nethernet = true\n[[node]]\nname = \"a\"\nmemory = \"384MiB\"\nnic = true\n\
                    [[node]]\nname = \"b\"\nmemory = \"512MiB\"\n";
        let spec = parse(good).unwrap();
        assert!(spec.mpi && spec.nodes.iter().all(|node| node.has_module()));
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        assert!(!spec.without_ethernet().mpi);
        let lone = good.replace("nic = true", "nic = false");
        assert_eq!(
            parse(&lone).map(|spec| spec.nodes[0].has_module()).ok(),
            Some(false)
        );
        assert_errors(
            good,
            r#"
            ethernet = true => ethernet = false | node[0].ethernet: with mpi = true
            memory = "384MiB" => memory = "383MiB" | node[0].memory: the guest image with MPI needs 384MiB
            name = "b" => name = "b"\nethernet = false | node[1].ethernet: with mpi = true
            "#,
        );
        let none = lone.replace("name = \"b\"", "name = \"b\"\nnic = false");
        let error = parse(&none).unwrap_err().to_string();
        assert!(error.contains("mpi: no node has"), "{error}");
    }
}
