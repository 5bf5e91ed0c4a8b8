//! The library's side of one process on a simulated node.

use qnic_abi::atomic::Function;
use qnic_abi::command::{CommandFlags, Descriptor, Opcode, DESCRIPTOR_BYTES, INLINE_CAPACITY};
use qnic_abi::control::{self, Export, Import, NewProcess, Unexport, EXPORT_PHYSICAL};
use qnic_abi::host_area::{
    self, result_offset, signal_offset, ERROR_RECORDS, ERROR_RING, HOST_PAGES,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{command_offset, AWAKE, COMMAND_ENTRIES, WAKE_REQUEST};
use qnic_abi::{Access, Port, SegmentId, SharedMemory, Status, VniId, PAGE_SIZE};
use zerocopy::{FromZeros, IntoBytes};

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

/// A registered process.
#[derive(Debug, Clone)]
pub struct SimProcess {
    /// Its node.
    pub node: usize,
    /// Its VNI.
    pub vni: VniId,
    /// Its port.
    pub port: Port,
    /// Commands issued.
    pub tail: u64,
    host_area: [u64; HOST_PAGES],
    wake_request: u64,
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
        let sram = &this.host.sram;
        for entry in 0..COMMAND_ENTRIES as u64 {
            sram.store_u64(window + command_offset(entry), 0, Ordering::Relaxed);
        }
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
                tail: 0,
                host_area,
                wake_request: sram_word(cluster, node, window + WAKE_REQUEST),
            }),
            status => {
                cluster.nodes[node].driver.release(&host_area);
                Err(status)
            }
        }
    }

    /// What is left of a process that has ended.
    pub fn ended(node: usize, vni: VniId, port: Port) -> Self {
        SimProcess {
            node,
            vni,
            port,
            tail: 0,
            host_area: [u64::MAX; HOST_PAGES],
            wake_request: 0,
        }
    }

    /// Says whether it is more than what is left of a process.
    pub fn is_registered(&self) -> bool {
        self.host_area[0] != u64::MAX
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

    /// A command that transfers between a local and a remote segment.
    pub fn descriptor(
        opcode: Opcode,
        local: (&SimSegment, u64),
        remote: (&SimSegment, u64),
        length: u64,
    ) -> Descriptor {
        let mut command = Descriptor::new_zeroed();
        command.opcode = opcode as u8;
        command.length = length.into();
        command.local_address = (local.0.address + local.1).into();
        command.local_key = local.0.key.into();
        command.local_segment = local.0.id.0.into();
        command.remote_address = (remote.0.address + remote.1).into();
        command.remote_key = remote.0.key.into();
        command.remote_segment = remote.0.id.0.into();
        command.remote_node = (remote.0.node as u16).into();
        command.remote_port = remote.0.port.0.into();
        command
    }

    /// A write whose payload stands in the command.
    pub fn inline_descriptor(remote: (&SimSegment, u64), length: u64) -> Descriptor {
        let mut command = Self::descriptor(Opcode::Write, remote, remote, length);
        command.local_address = 0.into();
        command.local_key = 0.into();
        command.local_segment = 0.into();
        command.flags = CommandFlags::INLINE.bits();
        command
    }

    /// Issues a command; rings if the NIC is not awake. Returns its number, or
    /// `None` if the queue is full.
    pub fn issue(
        &mut self,
        cluster: &mut Cluster,
        command: &Descriptor,
        payload: &[u8],
    ) -> Option<u64> {
        let number = self.tail;
        if number - self.word(cluster, host_area::HEAD) >= COMMAND_ENTRIES as u64 {
            return None;
        }
        let mut bytes = [0; DESCRIPTOR_BYTES + INLINE_CAPACITY];
        let (front, rest) = bytes.split_at_mut(DESCRIPTOR_BYTES);
        front.copy_from_slice(command.as_bytes());
        rest[..payload.len()].copy_from_slice(payload);
        let mut words = [0u64; (DESCRIPTOR_BYTES + INLINE_CAPACITY) / 8];
        words.as_mut_bytes().copy_from_slice(&bytes);
        let window = self.window(cluster);
        let slot = window + command_offset(number);
        let sram = &cluster.nodes[self.node].host.sram;
        sram.write_words(slot + 8, &words[1..]);
        sram.store_u64(slot, words[0], Ordering::Release);
        self.tail += 1;
        sram.fence();
        if sram.load_u64(window + AWAKE, Ordering::Relaxed) == 0 {
            cluster.ring(self.node, self.vni);
        }
        Some(number)
    }

    /// An atomic command on `length` bytes.
    pub fn atomic_descriptor(
        function: Function,
        to: (&SimSegment, u64),
        length: u64,
        operands: [u64; 2],
        record: u16,
    ) -> Descriptor {
        let mut command = Self::inline_descriptor(to, length);
        command.opcode = Opcode::Atomic as u8;
        command.flags = 0;
        command.function = (function as u16).into();
        command.local_address = operands[0].into();
        command.local_key = operands[1].into();
        command.local_segment = record.into();
        command
    }

    /// Asks to be woken at the next change of the host area.
    pub fn request_wake(&mut self, cluster: &Cluster) {
        self.wake_request += 1;
        let word = self.window(cluster) + WAKE_REQUEST;
        let sram = &cluster.nodes[self.node].host.sram;
        sram.store_u64(word, self.wake_request, Ordering::Release);
        sram.fence();
    }

    /// Offset of its window.
    pub fn window(&self, cluster: &Cluster) -> usize {
        cluster.nodes[self.node]
            .nic
            .geometry()
            .window_offset(self.vni)
    }

    /// A word of its host area.
    pub fn word(&self, cluster: &Cluster, offset: usize) -> u64 {
        let page = self.host_area[offset / PAGE_SIZE];
        let memory = &cluster.nodes[self.node].host.memory;
        memory.word(page + (offset % PAGE_SIZE) as u64)
    }

    /// Writes and reads that are complete.
    pub fn done(&self, cluster: &Cluster) -> (u64, u64) {
        let writes = self.word(cluster, host_area::WRITES_DONE);
        (writes, self.word(cluster, host_area::READS_DONE))
    }

    /// What an atomic command brought: value and detail.
    pub fn result(&self, cluster: &Cluster, record: u16) -> (u64, u64) {
        let offset = result_offset(usize::from(record));
        (self.word(cluster, offset), self.word(cluster, offset + 8))
    }

    /// Counted notifications delivered.
    pub fn signals(&self, cluster: &Cluster, notification: u32) -> u64 {
        self.word(cluster, signal_offset(notification))
    }

    /// The last error records, at most as many as the ring holds: command and status.
    ///
    /// # Panics
    /// If one has an unknown status.
    pub fn errors(&self, cluster: &Cluster) -> Vec<(u64, Status)> {
        let count = self.word(cluster, host_area::ERRORS);
        let first = count.saturating_sub(ERROR_RECORDS as u64);
        let record = |number: u64| {
            let place = ERROR_RING + number as usize % ERROR_RECORDS * 16;
            let status = self.word(cluster, place + 8) as u32;
            let status = Status::try_from(status).expect("a known status");
            (self.word(cluster, place), status)
        };
        (first..count).map(record).collect()
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

fn sram_word(cluster: &Cluster, node: usize, offset: usize) -> u64 {
    cluster.nodes[node]
        .host
        .sram
        .load_u64(offset, Ordering::Relaxed)
}
