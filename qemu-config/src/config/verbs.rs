//! A cluster whose file says `verbs = true` (X18): its nodes with the guest image and the module have a device of
//! libibverbs.

use qnic_config::{require, ConfigError};

use super::spec::ClusterSpec;

/// Checks that there is a node with such a device.
pub(super) fn check(spec: &ClusterSpec) -> Result<(), ConfigError> {
    let there = !spec.verbs || spec.nodes.iter().any(|node| node.has_module());
    let message =
        "no node has the guest image and a NIC with the module: a device of libibverbs needs them";
    require(there, "verbs", message)
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;

    #[test]
    fn a_device_of_libibverbs_needs_a_nic() {
        let good =
            "name = \"c\"\nverbs = true\n[[node]]\nname = \"a\"\nmemory = \"256MiB\"\nnic = true\n";
        let spec = parse(good).unwrap();
        assert!(spec.verbs);
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        let none = good.replace("nic = true", "nic = false");
        let error = parse(&none).unwrap_err().to_string();
        assert!(error.contains("verbs: no node has"), "{error}");
    }
}
