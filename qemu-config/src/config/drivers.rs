//! Which nodes have which driver, and what goes with it (X11).

use qnic_config::{require, ConfigError};

use super::driver::NicDriver;
use super::spec::{ClusterSpec, NodeSpec};

impl NodeSpec {
    /// Returns true if a process of the guest drives its NIC.
    pub(crate) fn is_on_vfio(&self) -> bool {
        self.nic && self.driver == NicDriver::Vfio
    }

    /// Returns true if its guest image has `qnic.ko`, which drives its NICs. A disk image has what it has.
    pub(crate) fn has_module(&self) -> bool {
        self.nic && self.driver == NicDriver::Module && self.image.is_none()
    }
}

/// Checks what a node with this driver can have; `origin` tells which `[[node]]` of the file it came
/// from.
pub(super) fn check(
    spec: &ClusterSpec,
    origin: &dyn Fn(usize) -> usize,
) -> Result<(), ConfigError> {
    for (index, node) in spec.nodes.iter().enumerate() {
        let key = format!("node[{}]", origin(index));
        let message = "a node with nic = false has nothing to drive";
        let has_none = !node.nic && node.driver == NicDriver::Vfio;
        require(!has_none, format!("{key}.driver"), message)?;
        let message = "a node whose driver is \"vfio\" has one NIC, without a name";
        let several = node.is_on_vfio() && !node.nics.is_empty();
        require(!several, format!("{key}.nics"), message)?;
        let memory = spec.remote_memory.iter();
        let taken = memory
            .filter(|_| node.is_on_vfio())
            .any(|memory| memory.on == node.name || memory.servers.contains(&node.name));
        let message = "[[remote_memory]] names this node: it takes the module";
        require(!taken, format!("{key}.driver"), message)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_errors, parse};
    use super::*;

    /// The file says it for all nodes, and a node for itself; plain guests have no driver.
    #[test]
    fn a_cluster_has_nodes_of_every_kind() {
        let text = "name = \"c\"\ndriver = \"vfio\"\n\
                    [[node]]\nname = \"a\"\n\
                    [[node]]\nname = \"b\"\ndriver = \"module\"\n\
                    [[node]]\nname = \"c\"\nnic = false\n";
        let spec = parse(text).unwrap();
        let of = |node: &NodeSpec| (node.is_on_vfio(), node.has_module());
        let kinds: Vec<_> = spec.nodes.iter().map(of).collect();
        assert_eq!(kinds, [(true, false), (false, true), (false, false)]);
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
    }

    #[test]
    fn a_node_on_vfio_has_neither_named_nics_nor_remote_memory() {
        let good = "name = \"c\"\n[[node]]\nname = \"a\"\n[[node]]\nname = \"b\"\n\
                    [[remote_memory]]\non = \"a\"\nsize = \"64MiB\"\nreplicas = 1\nservers = [\"b\"]\n";
        parse(good).unwrap();
        assert_errors(
            good,
            r#"
            name = "b" => name = "b"\ndriver = "vfio" | node[1].driver: [[remote_memory]] names this node
            name = "a" => name = "a"\ndriver = "vfio" | node[0].driver: [[remote_memory]] names this node
            name = "a" => name = "a"\ndriver = "vfio"\nnics = [{ name = "x" }] | node[0].nics: a node whose driver
            name = "a" => name = "a"\ndriver = "vfio"\nnic = false | node[0].driver: a node with nic = false has nothing
            name = "a" => name = "a"\ndriver = "dpdk" | unknown variant
            "#,
        );
    }
}
