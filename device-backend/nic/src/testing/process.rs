//! The library's side of one process on a simulated node.

use qnic_abi::command::Descriptor;
use qnic_abi::control::{self, Export, Import, NewProcess, Unexport, EXPORT_PHYSICAL};
use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::{Access, Key, NodeId, Port, SegmentId, Status, VniId, PAGE_SIZE};
use qnic_abi_client::{words, Command, CommandQueue, HostArea, Memory, Remote};

use super::Cluster;

/// A segment as its importer knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimSegment {
    /// Node that exports.
    pub node: usize,
    /// Port of the process that exports.
    pub port: Port,
    /// Its index there.
    pub id: SegmentId,
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Its key.
    pub key: u64,
}

impl SimSegment {
    /// The address at an offset, for its own process.
    pub fn at(&self, offset: u64) -> Memory {
        Memory {
            address: self.address + offset,
            key: Key(self.key),
            segment: self.id,
        }
    }

    /// The address at an offset, for another process.
    pub fn to(&self, offset: u64) -> Remote {
        Remote {
            node: NodeId(self.node as u16),
            port: self.port,
            memory: self.at(offset),
        }
    }
}

/// A registered process.
#[derive(Debug, Clone)]
pub struct SimProcess {
    /// Its node.
    pub node: usize,
    /// Its VNI.
    pub vni: VniId,
    /// Its port.
    pub port: Port,
    /// Its command queue.
    pub queue: CommandQueue,
    host_area: [u64; HOST_PAGES],
}

impl SimProcess {
    /// Registers a process.
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn register(
        cluster: &mut Cluster,
        node: usize,
        vni: VniId,
        port: Port,
    ) -> Result<Self, Status> {
        Self::register_with(cluster, node, vni, port, 0)
    }

    /// Registers a process with flags of [`NewProcess`].
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn register_with(
        cluster: &mut Cluster,
        node: usize,
        vni: VniId,
        port: Port,
        flags: u16,
    ) -> Result<Self, Status> {
        let this = &mut cluster.nodes[node];
        let host_area = std::array::from_fn(|_| this.driver.allocate(&this.host));
        let window = this.nic.geometry().window_offset(vni);
        let mut queue = CommandQueue::new(&this.host.sram, window);
        queue.clear(&this.host.sram);
        let body = NewProcess {
            port: port.0.into(),
            flags: flags.into(),
            pid: 1.into(),
            host_area: host_area.map(Into::into),
        };
        match cluster.control(node, control::Opcode::NewProcess, vni, &body) {
            Status::Ok => Ok(SimProcess {
                node,
                vni,
                port,
                queue,
                host_area,
            }),
            status => {
                cluster.nodes[node].driver.release(&host_area);
                Err(status)
            }
        }
    }

    /// Ends the process.
    pub fn end(self, cluster: &mut Cluster) {
        let status = cluster.control(
            self.node,
            control::Opcode::DeleteProcess,
            self.vni,
            &[0u8; 0],
        );
        if status == Status::Ok {
            let this = &mut cluster.nodes[self.node];
            this.driver.forget(&this.host, self.vni);
            this.driver.release(&self.host_area);
        }
    }

    /// Exports a range.
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn export(
        &self,
        cluster: &mut Cluster,
        id: u16,
        name: u64,
        (address, length): (u64, u64),
        access: Access,
    ) -> Result<SimSegment, Status> {
        let page_key = 0xaa00 + u64::from(id);
        let driver = &mut cluster.nodes[self.node].driver;
        driver.cover(self.vni, address, length, page_key);
        self.publish(
            cluster,
            (id, 0),
            name,
            (address, length),
            (access, page_key),
        )
    }

    /// Exports guest-physical memory.
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn export_physical(
        &self,
        cluster: &mut Cluster,
        id: u16,
        name: u64,
        range: (u64, u64),
        access: Access,
    ) -> Result<SimSegment, Status> {
        self.publish(cluster, (id, EXPORT_PHYSICAL), name, range, (access, 0))
    }

    fn publish(
        &self,
        cluster: &mut Cluster,
        (id, flags): (u16, u16),
        name: u64,
        (address, length): (u64, u64),
        (access, page_key): (Access, u64),
    ) -> Result<SimSegment, Status> {
        let key = name ^ 0x5eed_0000 ^ u64::from(self.vni.0) << 32;
        let body = Export {
            segment: id.into(),
            flags: flags.into(),
            access: access.bits().into(),
            name: name.into(),
            address: address.into(),
            length: length.into(),
            key: key.into(),
            page_key: page_key.into(),
        };
        match cluster.control(self.node, control::Opcode::Export, self.vni, &body) {
            Status::Ok => Ok(SimSegment {
                node: self.node,
                port: self.port,
                id: SegmentId(id),
                address,
                length,
                key,
            }),
            status => Err(status),
        }
    }

    /// Revokes a segment.
    pub fn unexport(&self, cluster: &mut Cluster, id: SegmentId) -> Status {
        let body = Unexport {
            segment: id.0.into(),
            reserved: [0.into(); 3],
        };
        cluster.control(self.node, control::Opcode::Unexport, self.vni, &body)
    }

    /// Starts an import; returns its token, and the status if it failed at once.
    ///
    /// # Errors
    /// What the NIC refuses it with.
    pub fn import(
        &self,
        cluster: &mut Cluster,
        node: u16,
        port: Port,
        name: u64,
        wait_ms: u32,
    ) -> Result<u64, Status> {
        let body = Import {
            node: node.into(),
            port: port.0.into(),
            wait_ms: wait_ms.into(),
            name: name.into(),
        };
        let opcode = control::Opcode::Import;
        match cluster.request(self.node, opcode, self.vni, &body) {
            (token, None) => Ok(token),
            (_, Some(reply)) => Err(Status::try_from(u32::from(reply[0])).unwrap_or(Status::Ok)),
        }
    }

    /// Issues a command; rings if the NIC is not awake. Returns its number, or
    /// `None` if the queue is full.
    pub fn issue(
        &mut self,
        cluster: &mut Cluster,
        command: &Command,
        payload: &[u8],
    ) -> Option<u64> {
        if self.queue.is_full(self.area(cluster).head()) {
            return None;
        }
        let sram = &cluster.nodes[self.node].host.sram;
        let (number, ring) = self.queue.post(sram, command, payload);
        if ring {
            cluster.ring(self.node, self.vni);
        }
        Some(number)
    }

    /// Issues a command of any protocol; the queue has room.
    pub fn post(&mut self, cluster: &mut Cluster, descriptor: &Descriptor) {
        let sram = &cluster.nodes[self.node].host.sram;
        if self.queue.post_words(sram, &words(descriptor, &[])).1 {
            cluster.ring(self.node, self.vni);
        }
    }

    /// Asks to be woken at the next change of the host area.
    pub fn request_wake(&mut self, cluster: &Cluster) {
        self.queue.request_wake(&cluster.nodes[self.node].host.sram);
    }

    /// Offset of its window.
    pub fn window(&self) -> usize {
        self.queue.window()
    }

    /// Its host area.
    pub fn area<'a>(&'a self, cluster: &'a Cluster) -> HostArea<impl Fn(usize) -> u64 + 'a> {
        let memory = &cluster.nodes[self.node].host.memory;
        HostArea(move |offset| {
            let page = self.host_area[offset / PAGE_SIZE];
            memory.word(page + (offset % PAGE_SIZE) as u64)
        })
    }

    /// A word of its host area.
    pub fn word(&self, cluster: &Cluster, offset: usize) -> u64 {
        self.area(cluster).0(offset)
    }

    /// Writes and reads that are complete.
    pub fn done(&self, cluster: &Cluster) -> (u64, u64) {
        self.area(cluster).done()
    }

    /// What an atomic command brought: value and detail.
    pub fn result(&self, cluster: &Cluster, record: u16) -> (u64, u64) {
        self.area(cluster).result(record)
    }

    /// Counted notifications delivered.
    pub fn signals(&self, cluster: &Cluster, notification: u32) -> u64 {
        self.area(cluster).signals(notification)
    }

    /// The last error records: command and status.
    pub fn errors(&self, cluster: &Cluster) -> Vec<(u64, Status)> {
        self.area(cluster).errors()
    }

    /// Reads its virtual memory.
    pub fn read(&self, cluster: &Cluster, address: u64, length: usize) -> Vec<u8> {
        let this = &cluster.nodes[self.node];
        let mut bytes = vec![0; length];
        this.driver.read(&this.host, self.vni, address, &mut bytes);
        bytes
    }

    /// Writes its virtual memory.
    pub fn write(&self, cluster: &mut Cluster, address: u64, bytes: &[u8]) {
        let this = &mut cluster.nodes[self.node];
        this.driver.write(&this.host, self.vni, address, bytes);
    }
}
