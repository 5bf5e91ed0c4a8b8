//! QEMU's command line.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use qnic_config::DEFAULT_MTU;
use qnic_images::GuestImage;
use qnic_limits::{CONFIG_SIZE, DEFAULT_DOORBELLS, FIRST_DOORBELL, VIRTIO_ID};

use crate::accel::Accel;
use crate::config::MAX_NICS;
use crate::dirs::ClusterDir;
use crate::limits::{COMMAND_SLOTS, MEMORY_SLOTS};
use crate::{Error, EthernetPort, NodeSpec, Result};

/// Name of the port on which the guest's init says that it is ready, or why not.
pub(crate) const READY_PORT: &str = "org.qnic.ready";
/// Name of the guest agent's port, as the agent expects it.
const AGENT_PORT: &str = "org.qemu.guest_agent.0";
/// Name of the port of the agent that a disk image gets; qemu-config/seed/qnic-agent.service knows it.
const OWN_AGENT_PORT: &str = "org.qnic.agent";

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

/// Entries of a queue of an Ethernet port, as many as those of QEMU's own device have. A stock driver adds buffers
/// when half of them are used: of the 64 that this device has by default, half hold no segment of 64 KiB.
const ETHERNET_RING: u16 = 256;

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

/// Serial number of the disk that a disk image is told by how to join.
pub(crate) const SEED_SERIAL: &str = "qnic-seed";

/// MAC address of the way out: QEMU's own for its first network device.
pub(crate) const OUTSIDE_MAC: &str = "52:54:00:12:34:56";

/// What a guest boots.
#[derive(Clone, Copy)]
pub(crate) enum Boots<'a> {
    /// A kernel and the guest image.
    Guest(&'a GuestImage),
    /// A disk image, which is not written to, by its own boot loader.
    Disk(&'a Path, DiskFormat),
}

/// How a disk image is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskFormat {
    Qcow2,
    Raw,
}

impl DiskFormat {
    /// The format of the image in `file`: QEMU is not left to guess it.
    pub(crate) fn of(file: &Path) -> Result<Self> {
        let mut magic = Vec::new();
        let read = File::open(file).and_then(|file| file.take(4).read_to_end(&mut magic));
        read.map_err(Error::io("read", file))?;
        Ok(match magic == *b"QFI\xfb" {
            true => Self::Qcow2,
            false => Self::Raw,
        })
    }
}

/// Everything a command line depends on.
pub(crate) struct Machine<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) node: &'a NodeSpec,
    pub(crate) dir: &'a ClusterDir,
    pub(crate) disks: &'a Path,
    pub(crate) boots: Boots<'a>,
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

/// File name of the volume that a disk image on `node` is told by how to join, among the cluster's disks.
pub(crate) fn seed_file(node: &str) -> String {
    format!("{node}.seed.iso")
}

/// The arguments with which QEMU runs `machine`.
pub(crate) fn arguments(machine: &Machine<'_>) -> Vec<OsString> {
    let mut line = Line::default();
    machine_and_memory(&mut line, machine);
    match machine.boots {
        Boots::Guest(image) => kernel(&mut line, machine, image),
        Boots::Disk(image, format) => disk_image(&mut line, machine, image, format),
    }
    panics(&mut line);
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

/// A kernel that panics tells QEMU, which stops the machine. One that cannot restarts at once,
/// which the launcher sees as a reset.
fn panics(line: &mut Line) {
    line.device("pvpanic-pci");
    line.plain("-action", "panic=pause");
}

/// The guest writes to an overlay, a temporary file that goes with QEMU. The boot loader is that of the
/// image, by SeaBIOS.
fn disk_image(line: &mut Line, machine: &Machine<'_>, image: &Path, format: DiskFormat) {
    let format = match format {
        DiskFormat::Qcow2 => "qcow2",
        DiskFormat::Raw => "raw",
    };
    let before = format!("if=none,id=image,format={format},snapshot=on,discard=unmap,file=");
    line.path("-drive", &before, image, "");
    line.device("virtio-blk-pci,drive=image,serial=image,bootindex=0,werror=report,rerror=report");
    let seed = machine.disks.join(seed_file(&machine.node.name));
    let before = "driver=file,node-name=seed,read-only=on,filename=";
    line.path("-blockdev", before, &seed, "");
    line.device(&format!("virtio-blk-pci,drive=seed,serial={SEED_SERIAL}"));
}

fn kernel(line: &mut Line, machine: &Machine<'_>, image: &GuestImage) {
    let kernel = match machine.accel {
        Accel::Kvm => &image.vmlinuz,
        Accel::Tcg => image.vmlinux.as_ref().unwrap_or(&image.vmlinuz),
    };
    for (option, file) in [("-kernel", kernel), ("-initrd", &image.initrd)] {
        line.0.extend([option.into(), file.into()]);
    }
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
    let agent = match machine.boots {
        Boots::Guest(_) => AGENT_PORT,
        // The image's own agent, if it has one, may be told to start no programs.
        Boots::Disk(..) => OWN_AGENT_PORT,
    };
    line.port(AGENT_LABEL, agent);
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
         vq_size={ETHERNET_RING},config_size={CONFIG_SIZE},addr={ETHERNET_SLOT:#x}"
    ));
    let name = format!("name={HOSTS_FILE},file=");
    line.path("-fw_cfg", &name, &dir.hosts(), "");
}

/// A way to the networks of this machine, beside those of the cluster. The guest finds it by its slot.
fn outside(line: &mut Line, node: &NodeSpec) {
    if node.outside {
        line.plain("-netdev", "user,id=outside,ipv6=off");
        line.device(&format!(
            "virtio-net-pci,netdev=outside,mac={OUTSIDE_MAC},romfile=,addr={OUTSIDE_SLOT:#x}"
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
#[path = "qemu_tests.rs"]
mod tests;
