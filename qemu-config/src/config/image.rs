//! Nodes that boot a disk image (X17).
//!
//! ```toml
//! [[node]]
//! name = "a"
//! image = "debian.qcow2"      # or a raw one; it is never changed
//! memory = "512MiB"           # the default of such a node
//! nic = false                 # true, the default: it has a NIC, which a module of the image may drive
//! ```
//!
//! The image has a kernel and a boot loader of its own, and cloud-init (docs/disk-images.md).

use std::path::Path;

use qnic_config::{require, ByteSize, ConfigError};

use super::spec::NodeSpec;

impl NodeSpec {
    /// RAM of a node with a disk image that names no other size.
    pub(super) const DEFAULT_IMAGE_MEMORY: ByteSize = ByteSize::mib(512);
}

/// Checks what a node with an image can have.
pub(super) fn check(node: &NodeSpec, key: &str) -> Result<(), ConfigError> {
    if node.image.is_none() {
        return Ok(());
    }
    let has_stock_kernel = node.kernel == NodeSpec::new("").kernel;
    let message = "a node with an image boots the kernel of its image";
    require(has_stock_kernel, format!("{key}.kernel"), message)?;
    let message = "a node with an image has one NIC, without a name";
    require(node.nics.is_empty(), format!("{key}.nics"), message)?;
    let message = "a node with an image has no \"vfio\": give the NIC to vfio-pci in the guest";
    require(!node.is_on_vfio(), format!("{key}.driver"), message)?;
    for (index, file) in node.files.iter().enumerate() {
        let message = "a node with an image takes no line breaks in paths";
        let fits = !has_line_break(&file.to);
        require(fits, format!("{key}.files[{index}].to"), message)?;
    }
    Ok(())
}

fn has_line_break(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().contains(&b'\n')
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_errors, parse};
    use super::*;

    #[test]
    fn a_disk_image_is_a_node_and_brings_its_own_kernel() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let path = image.path().to_str().unwrap();
        let good = format!("name = \"c\"\n[[node]]\nname = \"a\"\ncount = 2\nimage = \"{path}\"\n");
        let spec = parse(&good).unwrap();
        assert_eq!(spec.nodes[1].image.as_deref(), Some(image.path()));
        assert_eq!(spec.nodes[1].memory, ByteSize::mib(512));
        assert!(spec.nodes[0].nic && !spec.nodes[0].has_module());
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        assert_errors(
            &good,
            r#"
            count = 2 => kernel = "backports" | node[0].kernel: a node with an image boots
            count = 2 => nics = [{ name = "x" }] | node[0].nics: a node with an image has one NIC
            count = 2 => driver = "vfio" | node[0].driver: a node with an image has no "vfio"
            image = " => image = "/nowhere/x | node[0].image: there is no file "/nowhere/x
            "#,
        );
    }
}
