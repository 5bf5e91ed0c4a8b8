//! Whole command lines, and what a key of the cluster file changes of them.

use super::*;
use crate::testing::TestDir;
use crate::{ByteSize, NicSpec};

fn line_of(node: &NodeSpec, accel: Accel) -> Vec<String> {
    line_with(node, accel, None)
}

fn line_with(node: &NodeSpec, accel: Accel, ethernet: Option<(EthernetPort, u16)>) -> Vec<String> {
    let test = TestDir::new();
    let image = GuestImage {
        vmlinuz: "/cache/vmlinuz".into(),
        vmlinux: Some("/cache/vmlinux".into()),
        initrd: "/cache/initrd".into(),
    };
    let disks = test.runtime.disks("c");
    let machine = Machine {
        cluster: "c",
        node,
        dir: &test.dir,
        disks: &disks,
        boots: match &node.image {
            None => Boots::Guest(&image),
            Some(image) => Boots::Disk(image, DiskFormat::Qcow2),
        },
        accel,
        tsc_khz: Some(2_600_000),
        ethernet,
    };
    let top = test.path().to_str().unwrap().replace(',', ",,");
    let line = arguments(&machine);
    line.iter()
        .map(|argument| argument.to_str().unwrap().replace(&top, "TOP"))
        .collect()
}

#[test]
fn a_node_with_everything() {
    let mut node = NodeSpec::new("a");
    node.swap = Some(ByteSize::mib(512));
    node.qemu_args = vec!["-device".into(), "virtio-rng-pci".into()];
    let line = line_of(&node, Accel::Tcg);
    let expected = "-name c-a -nodefaults -no-user-config -display none \
        -machine q35,memory-backend=ram,pit=off -accel tcg,thread=multi -cpu max,-erms,-fsrm -smp 1,maxcpus=2 -m 256M \
        -object memory-backend-memfd,id=ram,size=268435456,share=on \
        -kernel /cache/vmlinux -initrd /cache/initrd \
        -append console=ttyS0 quiet panic=-1 no_timer_check rootfstype=ramfs qnic.node=a mitigations=off cryptomgr.notests=1 tsc=reliable tsc_early_khz=2600000 \
        -device pvpanic-pci -action panic=pause \
        -chardev file,id=console,append=on,path=TOP/r/c/nodes/a/console.log -serial chardev:console \
        -chardev socket,id=qmp,server=on,wait=off,path=TOP/r/c/nodes/a/qmp.sock -qmp chardev:qmp \
        -chardev socket,id=events,server=on,wait=off,path=TOP/r/c/nodes/a/events.sock -qmp chardev:events \
        -device virtio-serial-pci,id=ports,max_ports=11 \
        -chardev socket,id=agent,server=on,wait=off,path=TOP/r/c/nodes/a/agent.sock \
        -device virtserialport,bus=ports.0,chardev=agent,name=org.qemu.guest_agent.0 \
        -chardev file,id=ready,append=on,path=TOP/r/c/nodes/a/ready.log \
        -device virtserialport,bus=ports.0,chardev=ready,name=org.qnic.ready \
        -chardev socket,id=command0,server=on,wait=off,path=TOP/r/c/nodes/a/command0.sock \
        -device virtserialport,bus=ports.0,chardev=command0,name=org.qnic.command.0";
    let joined = line.join(" ");
    assert!(joined.starts_with(expected), "{joined}\n{expected}");
    let end = "-blockdev driver=file,node-name=swap,filename=TOP/d/c/a.swap.raw,discard=unmap \
        -device virtio-blk-pci,drive=swap,serial=swap,werror=report,rerror=report \
        -chardev socket,id=nic,path=TOP/r/c/nodes/a/nic.sock \
        -device vhost-user-test-device-pci,chardev=nic,virtio-id=39,num_vqs=16,config_size=64,page-per-vq=on \
        -device virtio-rng-pci";
    assert!(joined.ends_with(end), "{joined}\n{end}");
}

/// It is the last device, and the guest is told where to mount it.
#[test]
fn a_directory_is_shared() {
    let mut node = NodeSpec::new("a");
    let without = line_of(&node, Accel::Kvm).join(" ");
    node.share = Some(crate::ShareSpec::new("/results"));
    let with = line_of(&node, Accel::Kvm).join(" ");
    let end = " -chardev socket,id=share,path=TOP/r/c/nodes/a/share.sock \
        -device vhost-user-fs-pci,chardev=share,tag=share";
    let rest = with.strip_suffix(end).expect(&with);
    assert_eq!(rest.replacen(" qnic.share=/mnt/share", "", 1), without);
}

/// It is added above 4 GiB, and needs no bounce buffers there.
#[test]
fn memory_may_be_added() {
    let mut node = NodeSpec::new("a");
    node.memory_max = Some(ByteSize::mib(1024));
    let joined = line_of(&node, Accel::Kvm).join(" ");
    assert!(
        joined.contains(" -m 256M,slots=6,maxmem=1024M -object"),
        "{joined}"
    );
    assert!(
        joined.contains("qnic.node=a swiotlb=noforce -device"),
        "{joined}"
    );
}

/// Its guest learns the names by slots (S7).
#[test]
fn nics_with_names_are_in_slots() {
    let mut node = NodeSpec::new("a");
    node.nics = ["main", "disks"]
        .map(|name| NicSpec {
            name: name.into(),
            network: None,
        })
        .into();
    let joined = line_of(&node, Accel::Kvm).join(" ");
    assert!(
        joined.contains("qnic.node=a qnic.nics=main,disks -device"),
        "{joined}"
    );
    let end = "-chardev socket,id=nic.main,path=TOP/r/c/nodes/a/nic.main.sock \
        -device vhost-user-test-device-pci,chardev=nic.main,virtio-id=39,num_vqs=16,config_size=64,page-per-vq=on,addr=0x10 \
        -chardev socket,id=nic.disks,path=TOP/r/c/nodes/a/nic.disks.sock \
        -device vhost-user-test-device-pci,chardev=nic.disks,virtio-id=39,num_vqs=16,config_size=64,page-per-vq=on,addr=0x11";
    assert!(joined.ends_with(end), "{joined}\n{end}");
}

/// A process can drive its NIC: behind an IOMMU, by which KVM's interrupts go, and resettable (X11).
#[test]
fn a_nic_on_vfio_is_behind_an_iommu_and_a_port() {
    let mut node = NodeSpec::new("a");
    node.driver = crate::NicDriver::Vfio;
    let joined = line_of(&node, Accel::Tcg).join(" ");
    assert!(joined.contains(" qnic.node=a qnic.driver=vfio intel_iommu=on "));
    let iommu = joined.find(
        "-device intel-iommu,intremap=on,aw-bits=48 -device pcie-root-port,id=nic-port,chassis=1 ",
    );
    assert!(iommu < joined.find("-device virtio-serial-pci"), "{joined}");
    assert!(joined.ends_with("page-per-vq=on,bus=nic-port"), "{joined}");
    assert!(!joined.contains("irqchip"));
    let joined = line_of(&node, Accel::Kvm).join(" ");
    assert!(joined.contains("q35,memory-backend=ram,kernel-irqchip=split "));
}

/// Nothing else is in its slot, and no other device moves.
#[test]
fn an_ethernet_port_is_a_stock_device_in_a_slot_of_its_own() {
    let mut node = NodeSpec::new("a");
    let port = EthernetPort {
        mac: "52:54:00:71:00:00".parse().unwrap(),
        ip: "10.71.0.1".parse().unwrap(),
    };
    let mut check = |cpus, mtu, append: &str, queues| {
        node.cpus = cpus;
        let with = line_with(&node, Accel::Kvm, Some((port, mtu))).join(" ");
        let end = format!(
            " -chardev socket,id=eth,path=TOP/r/c/nodes/a/eth.sock \
             -device vhost-user-test-device-pci,chardev=eth,virtio-id=1,num_vqs={queues},vq_size=256,config_size=64,addr=0x18 \
             -fw_cfg name=opt/org.qnic/hosts,file=TOP/r/c/nodes/a/hosts"
        );
        let rest = with.strip_suffix(&end).expect(&with);
        let without = line_of(&node, Accel::Kvm).join(" ");
        assert_eq!(rest.replacen(append, "", 1), without);
    };
    check(1, 1500, " qnic.eth=10.71.0.1/16", 2);
    let both = " qnic.eth=10.71.0.1/16 qnic.mtu=4078";
    check(2, 4078, both, 5);
    check(64, 4078, both, 9);
}

#[test]
fn a_way_out_is_a_device_of_its_own() {
    let mut node = NodeSpec::new("a");
    let without = line_of(&node, Accel::Kvm).join(" ");
    node.outside = true;
    let end = " -netdev user,id=outside,ipv6=off \
               -device virtio-net-pci,netdev=outside,mac=52:54:00:12:34:56,romfile=,addr=0x19";
    assert_eq!(line_of(&node, Accel::Kvm).join(" "), without + end);
}

#[test]
fn a_plain_guest_has_no_nic_and_kvm_has_the_hosts_processor() {
    let mut node = NodeSpec::new("a");
    node.nic = false;
    let joined = line_of(&node, Accel::Kvm).join(" ");
    assert!(!joined.contains("vhost-user"));
    assert!(joined.contains("-accel kvm -cpu host -smp 1 -m"));
    assert!(!joined.contains("mitigations"), "{joined}");
}

/// It boots by its own loader, is never written to, and has the agent that it is given.
#[test]
fn a_disk_image_has_an_overlay_a_seed_and_no_kernel_of_ours() {
    let mut node = NodeSpec::new("a");
    node.image = Some("/images/a,b.qcow2".into());
    let joined = line_of(&node, Accel::Tcg).join(" ");
    let disk =
        " -drive if=none,id=image,format=qcow2,snapshot=on,discard=unmap,file=/images/a,,b.qcow2 \
        -device virtio-blk-pci,drive=image,serial=image,bootindex=0,werror=report,rerror=report \
        -blockdev driver=file,node-name=seed,read-only=on,filename=TOP/d/c/a.seed.iso \
        -device virtio-blk-pci,drive=seed,serial=qnic-seed -device pvpanic-pci ";
    assert!(joined.contains(disk), "{joined}\n{disk}");
    assert!(
        joined.contains("chardev=agent,name=org.qnic.agent "),
        "{joined}"
    );
    assert!(joined.contains("virtio-id=39"), "{joined}");
    for ours in ["-kernel", "-append", "guest_agent"] {
        assert!(!joined.contains(ours), "{ours}: {joined}");
    }
}

#[test]
fn the_format_of_an_image_is_told_by_its_first_bytes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (content, format) in [
        (&b"QFI\xfb\0\0\0\x03"[..], DiskFormat::Qcow2),
        (b"QFI", DiskFormat::Raw),
        (b"", DiskFormat::Raw),
    ] {
        std::fs::write(file.path(), content).unwrap();
        assert_eq!(DiskFormat::of(file.path()).unwrap(), format);
    }
    let error = DiskFormat::of(Path::new("/nowhere/x"))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("cannot read /nowhere/x: "), "{error}");
}
