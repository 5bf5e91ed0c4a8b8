//! Messages go to and fro between queue pairs of two programs, by the crate rdma-io; then one adds to a word of the
//! other's memory. All data are checked.
//!
//!     echo          the one that answers
//!     echo HOST     the one that asks
//!
//! They tell each other of their queue pairs by TCP, on port 18515.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use rdma_io::cq::CompletionQueue;
use rdma_io::device::open_device_by_name;
use rdma_io::mr::{AccessFlags, OwnedMemoryRegion};
use rdma_io::pd::ProtectionDomain;
use rdma_io::qp::{QpInitAttr, QueuePair};
use rdma_io::wc::WorkCompletion;
use rdma_io::wr::{RecvWr, SendFlags, SendWr, Sge, WrOpcode};
use rdma_io_sys::ibverbs::*;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const DEVICE: &str = "qnic0";
const PORT: u16 = 18515;
const ROUNDS: u64 = 100;
const ADDITIONS: u64 = 10;

/// Parts of the memory: a message to send, one that is received, a word that is added to, and what it was.
const BYTES: usize = 4096;
const RECEIVED: usize = BYTES;
const WORD: usize = 2 * BYTES;
const FOUND: usize = WORD + 8;
const LENGTH: usize = 3 * BYTES;

/// What an end says of itself: LID, queue pair, key and address of its memory.
type Place = [u64; 4];

struct Link {
    queue: Arc<CompletionQueue>,
    pair: QueuePair,
    memory: OwnedMemoryRegion,
    theirs: Place,
}

impl Link {
    /// Makes a queue pair, and connects it with that of the program at the other end.
    fn new(peer: &mut TcpStream) -> Result<Self> {
        let context = Arc::new(open_device_by_name(DEVICE)?);
        let domain = ProtectionDomain::new(Arc::clone(&context))?;
        let queue = CompletionQueue::new(Arc::clone(&context), 16)?;
        let pair = domain.create_qp(&queue, &queue, &QpInitAttr::default())?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
        let memory = domain.reg_mr_owned(vec![0; LENGTH], access)?;
        let lid = context.query_port(1)?.lid;
        let mine = [
            u64::from(lid),
            pair.qp_num().into(),
            memory.rkey().into(),
            memory.addr(),
        ];
        let link = Link {
            queue,
            pair,
            memory,
            theirs: exchange(peer, mine)?,
        };
        link.pair.to_init(1, 0, access.bits())?;
        link.receive()?;
        let mut attributes = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: IBV_MTU_4096,
            dest_qp_num: link.theirs[1] as u32,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr: ibv_ah_attr {
                dlid: link.theirs[0] as u16,
                port_num: 1,
                ..Default::default()
            },
            ..Default::default()
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        link.pair.modify(&mut attributes, mask)?;
        link.pair.to_rts(0)?;
        // Both are ready.
        exchange(peer, mine)?;
        Ok(link)
    }

    fn piece(&self, at: usize, length: usize) -> Sge {
        Sge::new(
            self.memory.addr() + at as u64,
            length as u32,
            self.memory.lkey(),
        )
    }

    fn receive(&self) -> Result<()> {
        let mut receive = RecvWr::new(1).sg(self.piece(RECEIVED, BYTES));
        Ok(self.pair.post_recv(&mut receive)?)
    }

    fn send(&self) -> Result<()> {
        let send = SendWr::new(2, WrOpcode::Send).flags(SendFlags::SIGNALED);
        Ok(self.pair.post_send(&mut send.sg(self.piece(0, BYTES)))?)
    }

    /// Waits for so many completions.
    fn complete(&self, count: usize) -> Result<()> {
        let mut done = [WorkCompletion::default()];
        for _ in 0..count {
            while self.queue.poll(&mut done)? == 0 {
                std::thread::yield_now();
            }
            if !done[0].is_success() {
                let (id, status) = (done[0].wr_id(), done[0].status());
                return Err(format!("work {id} ends with {status:?}").into());
            }
        }
        Ok(())
    }

    /// Sends messages that are answered with the same bytes.
    fn ask(&mut self) -> Result<()> {
        for round in 0..ROUNDS {
            self.memory.as_mut_slice()[..BYTES].fill(round as u8 + 1);
            self.send()?;
            self.complete(2)?;
            let memory = self.memory.as_slice();
            if memory[..BYTES] != memory[RECEIVED..][..BYTES] {
                return Err(format!("round {round}: wrong data").into());
            }
            self.receive()?;
        }
        for before in 0..ADDITIONS {
            let add = SendWr::new(3, WrOpcode::AtomicFetchAndAdd).flags(SendFlags::SIGNALED);
            let add = add.sg(self.piece(FOUND, 8));
            let word = self.theirs[3] + WORD as u64;
            self.pair
                .post_send(&mut add.atomic(word, self.theirs[2] as u32, 1, 0))?;
            self.complete(1)?;
            let found = u64::from_le_bytes(self.memory.as_slice()[FOUND..][..8].try_into()?);
            if found != before {
                return Err(format!("the word was {found}, and not {before}").into());
            }
        }
        Ok(())
    }

    fn answer(&mut self) -> Result<()> {
        for _ in 0..ROUNDS {
            self.complete(1)?;
            self.memory
                .as_mut_slice()
                .copy_within(RECEIVED..RECEIVED + BYTES, 0);
            self.receive()?;
            self.send()?;
            self.complete(1)?;
        }
        Ok(())
    }
}

/// Tells the other end, and hears of it.
fn exchange(peer: &mut TcpStream, mine: Place) -> Result<Place> {
    peer.write_all(&mine.map(u64::to_le_bytes).concat())?;
    let mut theirs = [[0; 8]; 4];
    peer.read_exact(theirs.as_flattened_mut())?;
    Ok(theirs.map(u64::from_le_bytes))
}

fn main() -> Result<()> {
    let host = std::env::args().nth(1);
    let mut peer = match &host {
        Some(host) => TcpStream::connect((host.as_str(), PORT))?,
        None => TcpListener::bind(("0.0.0.0", PORT))?.accept()?.0,
    };
    let mut link = Link::new(&mut peer)?;
    match host {
        Some(_) => link.ask()?,
        None => link.answer()?,
    }
    // Neither ends before the other has all it needs.
    exchange(&mut peer, Place::default())?;
    println!("{ROUNDS} messages and {ADDITIONS} additions were right");
    Ok(())
}
