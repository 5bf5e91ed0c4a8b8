//! QEMU's command line.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use qnic_config::DEFAULT_MTU;
use qnic_images::GuestImage;
use qnic_limits::{CONFIG_SIZE, DEFAULT_DOORBELLS, FIRST_DOORBELL, VIRTIO_ID};

use crate::accel::Accel;
use crate::config::MAX_NICS;
use crate::dirs::ClusterDir;
use crate::limits::{COMMAND_SLOTS, MEMORY_SLOTS};
use crate::{EthernetPort, NodeSpec};

/// Name of the port on which the guest's init says that it is ready, or why not.
pub(crate) const READY_PORT: &str = "org.qnic.ready";
/// Name of the guest agent's port, as the agent expects it.
const AGENT_PORT: &str = "org.qemu.guest_agent.0";

/// Virtqueues of a NIC: control, events, doorbells.
pub(crate) const NIC_QUEUES: usize = FIRST_DOORBELL + DEFAULT_DOORBELLS as usize;

/// PCI slot of the first NIC with a name; images/guest/boot knows it. QEMU's own devices are below.
const FIRST_NIC_SLOT: usize = 0x10;
const _: () = assert!(
    FIRST_NIC_SLOT + MAX_NICS <= 0x1f,
    "the chipset is in the last slot"
);

/// Name of the PCI Express port of a NIC that a process drives.
const NIC_PORT: &str = "nic-port";

/// PCI slot of the Ethernet port; images/guest/boot knows it.
const ETHERNET_SLOT: usize = 0x18;
const _: () = assert!(FIRST_NIC_SLOT + MAX_NICS <= ETHERNET_SLOT && OUTSIDE_SLOT < 0x1f);

/// PCI slot of the way out; images/guest/boot knows it.
const OUTSIDE_SLOT: usize = ETHERNET_SLOT + 1;

/// Name of the file with lines of `/etc/hosts`; images/guest/boot knows it.
const HOSTS_FILE: &str = "opt/org.qnic/hosts";

/// Name of the port of command slot `slot`.
pub(crate) fn command_port(slot: usize) -> String {
    format!("org.qnic.command.{slot}")
}

/// Label of the character device behind [`command_port`].
pub(crate) fn command_label(slot: usize) -> String {
    format!("command{slot}")
}

/// Label of the guest agent's character device.
pub(crate) const AGENT_LABEL: &str = "agent";

/// Everything a command line depends on.
pub(crate) struct Machine<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) node: &'a NodeSpec,
    pub(crate) dir: &'a ClusterDir,
    pub(crate) disks: &'a Path,
    pub(crate) image: &'a GuestImage,
    pub(crate) accel: Accel,
    /// Frequency of an emulated guest's time stamp counter in kHz, if it is known.
    pub(crate) tsc_khz: Option<u64>,
    /// Its Ethernet port, and the MTU of that.
    pub(crate) ethernet: Option<(EthernetPort, u16)>,
}

/// The blank disks of `node`: their names and sizes in bytes.
pub(crate) fn disks_of(node: &NodeSpec) -> impl Iterator<Item = (&'static str, u64)> + '_ {
    let disks = [("swap", node.swap), ("disk", node.disk)];
    disks
        .into_iter()
        .filter_map(|(name, size)| Some((name, size?.0)))
}

/// File name of disk `disk` of `node` among the cluster's disks.
pub(crate) fn disk_file(node: &str, disk: &str) -> String {
    format!("{node}.{disk}.raw")
}

/// The arguments with which QEMU runs `machine`.
pub(crate) fn arguments(machine: &Machine<'_>) -> Vec<OsString> {
    let mut line = Line::default();
    machine_and_memory(&mut line, machine);
    kernel(&mut line, machine);
    iommu(&mut line, machine);
    sockets_and_ports(&mut line, machine);
    disks(&mut line, machine);
    nics(&mut line, machine);
    ethernet(&mut line, machine);
    outside(&mut line, machine.node);
    share(&mut line, machine);
    line.0
        .extend(machine.node.qemu_args.iter().map(OsString::from));
    line.0
}

fn machine_and_memory(line: &mut Line, machine: &Machine<'_>) {
    let node = machine.node;
    line.plain("-name", &format!("{}-{}", machine.cluster, node.name));
    line.0
        .extend(["-nodefaults", "-no-user-config"].map(OsString::from));
    line.plain("-display", "none");
    // Without a PIT the kernel measures its time stamp counter by the HPET. By the PIT it counts its
    // own instructions meanwhile, and on a busy machine gets a clock that is wrong many times over.
    let (accel, cpu, pit) = match machine.accel {
        Accel::Kvm => ("kvm", "host", ""),
        // Nor are string instructions fast here: they copy byte by byte, and take four times as
        // long as the loads and stores that kernel and libraries use on a processor without fast
        // ones.
        Accel::Tcg => ("tcg,thread=multi", "max,-erms,-fsrm", ",pit=off"),
    };
    // KVM's own interrupt controller knows no IOMMU.
    let split = match machine.accel {
        Accel::Kvm if node.is_on_vfio() => ",kernel-irqchip=split",
        _ => "",
    };
    let board = format!("q35,memory-backend=ram{pit}{split}");
    line.plain("-machine", &board);
    line.plain("-accel", accel);
    line.plain("-cpu", cpu);
    line.plain("-smp", &processors(machine));
    let mut memory = format!("{}M", node.memory.whole_mib());
    if let Some(most) = node.memory_max {
        memory += &format!(",slots={MEMORY_SLOTS},maxmem={}M", most.whole_mib());
    }
    line.plain("-m", &memory);
    // The device process maps the guest's memory: it must be shareable.
    let size = node.memory.0;
    let memory = format!("memory-backend-memfd,id=ram,size={size},share=on");
    line.plain("-object", &memory);
}

/// What VFIO in the guest asks for: an IOMMU that groups devices and translates interrupts, before
/// the devices that are behind it. The NIC has guest-physical addresses all the same (docs/vfio.md).
/// Behind a port of its own it can be reset by itself, which VFIO does when a process lets go of it.
fn iommu(line: &mut Line, machine: &Machine<'_>) {
    if machine.node.is_on_vfio() {
        line.device("intel-iommu,intremap=on,aw-bits=48");
        line.device(&format!("pcie-root-port,id={NIC_PORT},chassis=1"));
    }
}

/// The processors there are. If only one is emulated, a second may come: QEMU emulates
/// a machine that can never have two without the fences in its atomic instructions,
/// and devices that run in other threads miss what the guest does.
fn processors(machine: &Machine<'_>) -> String {
    match (machine.accel, machine.node.cpus) {
        (Accel::Tcg, 1) => "1,maxcpus=2".to_owned(),
        (_, count) => count.to_string(),
    }
}

fn kernel(line: &mut Line, machine: &Machine<'_>) {
    let image = machine.image;
    let kernel = match machine.accel {
        Accel::Kvm => &image.vmlinuz,
        Accel::Tcg => image.vmlinux.as_ref().unwrap_or(&image.vmlinuz),
    };
    for (option, file) in [("-kernel", kernel), ("-initrd", &image.initrd)] {
        line.0.extend([option.into(), file.into()]);
    }
    // A kernel that panics tells QEMU, which stops the machine. One that cannot restarts at once,
    // which the launcher sees as a reset.
    let name = &machine.node.name;
    // The kernel panics if timer interrupts do not come while it counts its own instructions:
    // on a busy machine, they come too late. Under KVM it knows that by itself.
    // The guest's files stay in its memory: if they were swapped out, the agent would wait for its
    // own program behind all processes that swap, and not answer for minutes.
    let mut append =
        format!("console=ttyS0 quiet panic=-1 no_timer_check rootfstype=ramfs qnic.node={name}");
    if machine.node.is_on_vfio() {
        append += " qnic.driver=vfio intel_iommu=on";
    }
    let named: Vec<_> = machine.node.nics().filter_map(|(name, _)| name).collect();
    if !named.is_empty() {
        append += &format!(" qnic.nics={}", named.join(","));
    }
    if let Some((port, mtu)) = machine.ethernet {
        append += &format!(" qnic.eth={}", port.ip);
        if mtu != DEFAULT_MTU {
            append += &format!(" qnic.mtu={mtu}");
        }
    }
    if let Some(share) = &machine.node.share {
        append += &format!(" qnic.share={}", share.at.display());
    }
    if machine.node.memory_max.is_some() {
        // A kernel that expects memory beyond 4 GiB sets 64 MiB aside for devices that cannot reach it.
        append += " swiotlb=noforce";
    }
    if machine.accel == Accel::Tcg {
        // An emulated processor does not speculate, and each retpoline of a kernel that believes it
        // does is three jumps that the emulator has to look up.
        append += " mitigations=off";
        // A kernel tries each of its ciphers before it has a first program: half a second.
        append += " cryptomgr.notests=1";
        // Counter and HPET show one clock of the emulator. On a busy machine a kernel that compares
        // them finds the counter wrong, and reads the HPET from then on: an exit of the guest for
        // each look at the time.
        append += " tsc=reliable";
        if let Some(khz) = machine.tsc_khz {
            append += &format!(" tsc_early_khz={khz}");
        }
    }
    line.plain("-append", &append);
    line.device("pvpanic-pci");
    line.plain("-action", "panic=pause");
}

fn sockets_and_ports(line: &mut Line, machine: &Machine<'_>) {
    let node = machine.dir.node(&machine.node.name);
    line.log("console", &node.console());
    line.plain("-serial", "chardev:console");
    for (id, path) in [("qmp", node.monitor()), ("events", node.events())] {
        line.server(id, &path);
        line.plain("-qmp", &format!("chardev:{id}"));
    }
    let ports = COMMAND_SLOTS + 3;
    line.device(&format!("virtio-serial-pci,id=ports,max_ports={ports}"));
    line.server(AGENT_LABEL, &node.agent());
    line.port(AGENT_LABEL, AGENT_PORT);
    // A file, not a socket: the guest never waits for a reader, and one that comes later
    // still learns of it.
    line.log("ready", &node.ready());
    line.port("ready", READY_PORT);
    for slot in 0..COMMAND_SLOTS {
        let label = command_label(slot);
        line.server(&label, &node.command(slot));
        line.port(&label, &command_port(slot));
    }
}

/// An error of the host's disk becomes one of the guest's. Otherwise QEMU would stop the machine
/// when the host's disk is full, and report it nowhere.
fn disks(line: &mut Line, machine: &Machine<'_>) {
    for (disk, _) in disks_of(machine.node) {
        let file = machine.disks.join(disk_file(&machine.node.name, disk));
        let before = format!("driver=file,node-name={disk},filename=");
        line.path("-blockdev", &before, &file, ",discard=unmap");
        line.device(&format!(
            "virtio-blk-pci,drive={disk},serial={disk},werror=report,rerror=report"
        ));
    }
}

/// A NIC with a name is in a PCI slot that says which name that is: the guest has the names, in the
/// order of the slots, on its kernel's command line.
fn nics(line: &mut Line, machine: &Machine<'_>) {
    for (index, (name, _)) in machine.node.nics().enumerate() {
        let id = name.map_or("nic".to_owned(), |name| format!("nic.{name}"));
        let socket = machine.dir.node(&machine.node.name).nic(name);
        line.path("-chardev", &format!("socket,id={id},path="), &socket, "");
        let (virtio, config) = (VIRTIO_ID, CONFIG_SIZE);
        let place = match name {
            Some(_) => format!(",addr={:#x}", FIRST_NIC_SLOT + index),
            None if machine.node.is_on_vfio() => format!(",bus={NIC_PORT}"),
            None => String::new(),
        };
        line.device(&format!(
            "vhost-user-test-device-pci,chardev={id},virtio-id={virtio},num_vqs={NIC_QUEUES},\
             config_size={config},page-per-vq=on{place}"
        ));
    }
}

/// A stock virtio-net device, in a PCI slot by which the guest finds it. QEMU passes all of it on to the
/// device process: its address and MTU, and a control queue if there are several pairs of queues. The
/// names of other nodes go to the guest as a file: the command line of a kernel has no room for those
/// of 64.
fn ethernet(line: &mut Line, machine: &Machine<'_>) {
    if machine.ethernet.is_none() {
        return;
    }
    let dir = machine.dir.node(&machine.node.name);
    line.path("-chardev", "socket,id=eth,path=", &dir.ethernet(), "");
    let queues = match machine.node.ethernet_queues() {
        1 => 2,
        pairs => 2 * pairs + 1,
    };
    line.device(&format!(
        "vhost-user-test-device-pci,chardev=eth,virtio-id=1,num_vqs={queues},\
         config_size={CONFIG_SIZE},addr={ETHERNET_SLOT:#x}"
    ));
    let name = format!("name={HOSTS_FILE},file=");
    line.path("-fw_cfg", &name, &dir.hosts(), "");
}

/// A way to the networks of this machine, beside those of the cluster. The guest finds it by its slot.
fn outside(line: &mut Line, node: &NodeSpec) {
    if node.outside {
        line.plain("-netdev", "user,id=outside,ipv6=off");
        line.device(&format!(
            "virtio-net-pci,netdev=outside,romfile=,addr={OUTSIDE_SLOT:#x}"
        ));
    }
}

/// Behind all other devices, which it moves to no other slot.
fn share(line: &mut Line, machine: &Machine<'_>) {
    if machine.node.share.is_some() {
        let socket = machine.dir.node(&machine.node.name).share();
        line.path("-chardev", "socket,id=share,path=", &socket, "");
        line.device("vhost-user-fs-pci,chardev=share,tag=share");
    }
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn plain(&mut self, option: &str, value: &str) {
        self.0.extend([option.into(), value.into()]);
    }

    fn device(&mut self, value: &str) {
        self.plain("-device", value);
    }

    /// Adds `option` with a path in its value. QEMU ends a value at a comma, and takes two
    /// for one.
    fn path(&mut self, option: &str, before: &str, path: &Path, after: &str) {
        let mut value = OsString::from(before);
        value.push(doubled_commas(path.as_os_str()));
        value.push(after);
        self.0.extend([option.into(), value]);
    }

    /// A character device that is a socket on which QEMU listens.
    fn server(&mut self, id: &str, path: &Path) {
        let before = format!("socket,id={id},server=on,wait=off,path=");
        self.path("-chardev", &before, path, "");
    }

    /// A character device that is a file which grows.
    fn log(&mut self, id: &str, path: &Path) {
        let before = format!("file,id={id},append=on,path=");
        self.path("-chardev", &before, path, "");
    }

    fn port(&mut self, chardev: &str, name: &str) {
        self.device(&format!(
            "virtserialport,bus=ports.0,chardev={chardev},name={name}"
        ));
    }
}

fn doubled_commas(text: &OsStr) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let doubled = text.as_bytes().iter().flat_map(|byte| {
        let times = if *byte == b',' { 2 } else { 1 };
        std::iter::repeat_n(*byte, times)
    });
    OsString::from_vec(doubled.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;
    use crate::{ByteSize, NicSpec};

    fn line_of(node: &NodeSpec, accel: Accel) -> Vec<String> {
        line_with(node, accel, None)
    }

    fn line_with(
        node: &NodeSpec,
        accel: Accel,
        ethernet: Option<(EthernetPort, u16)>,
    ) -> Vec<String> {
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
            image: &image,
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
            joined.contains(" -m 256M,slots=16,maxmem=1024M -object"),
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
        let iommu = joined.find("-device intel-iommu,intremap=on,aw-bits=48 -device pcie-root-port,id=nic-port,chassis=1 ");
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
                 -device vhost-user-test-device-pci,chardev=eth,virtio-id=1,num_vqs={queues},config_size=64,addr=0x18 \
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
                   -device virtio-net-pci,netdev=outside,romfile=,addr=0x19";
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
}
