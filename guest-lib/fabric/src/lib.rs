//! A provider of libfabric: programs that use libfabric, MPI among them, run over qnic NICs as they are
//! (X10, N26).
//!
//! ```text
//!   program ── libfabric ── fi_prov_ini ─► provider: getinfo, fabric
//!                                             │
//!   fid_fabric ── fid_domain ── fid_ep ───────┤ fid_cq     fid_av     fid_eq
//!                  │ a NIC      │ a process   │ its ends   addresses  events of the program
//!                  │            │ on a port   │
//!              ┌───┴────────────┴─────────────┴──┐
//!              │ qnic library: Send, receive, …  │
//!              └─────────────────────────────────┘
//! ```
//! libfabric loads a file whose name ends in `fi.so` from a directory of FI_PROVIDER_PATH; this package builds
//! `libqnic_fi.so`, which is installed as `libqnic-fi.so`.
//!
//! # What is there, and what is not yet
//! | | |
//! |---|---|
//! | works, in host mode and in guests with the module | FI_EP_RDM; tagged and untagged messages up to 1 GiB by bounce memory, inject, data with completions, cancel; FI_MULTI_RECV; FI_DELIVERY_COMPLETE; wildcards, ignored tag bits, FI_DIRECTED_RECV and FI_SOURCE; FI_PEEK, FI_CLAIM and FI_DISCARD; completion queues of all formats with reads, waits and descriptors; address vectors; counters with waits; event queues; automatic progress. Memory regions, FI_RMA, FI_ATOMIC, FI_RMA_EVENT, by a service in the target's process; FI_COLLECTIVE, FI_FENCE |
//! | not tried | guests by VFIO; collectives between guests |
//! | not yet | scalable and shared contexts. Queries that ask for them are refused by name, calls return -FI_ENOSYS or -FI_EBADFLAGS |
//!
//! # What libfabric's objects are here
//! | libfabric | here |
//! |---|---|
//! | fabric | the network of the NIC; nothing |
//! | domain | the NIC; all domains of a process share it, as in host mode the process *is* its node |
//! | endpoint | a process of the NIC, registered on a port of its own when it is enabled; its message endpoint 0. The NIC names a sender by node and port, and does not carry the sender's message endpoint: two endpoints on one port could not be told apart by FI_SOURCE and FI_DIRECTED_RECV |
//! | address | 16 bytes: node, port, the port that exports the domain's memory, message endpoint, incarnation. The format is the provider's own: FI_ADDR_STR is read in two ways by programs |
//! | `fi_addr_t` | the index in the address vector, of a map and of a table alike: an address has more than 64 bits |
//! | FI_MSG, FI_TAGGED | the untagged and the tagged space; tag and ignored bits are the NIC's, all 64 |
//! | completion queue | the ends of requests, in the order in which they are seen. It grows: it cannot be overrun |
//! | memory region | a range of addresses, its key and its access, in a table of the domain (`regions`): nothing that the NIC knows |
//! | RMA, atomic operation | requests to the domain's service, a process of the NIC on a port of its own, and its thread (`service`) |
//! | data of a completion | the immediate of the message; its mark says whether it was given any (`engine::mark`) |
//! | FI_DELIVERY_COMPLETE | a Send that ends by an answer of the endpoint that has received it (`engine::answers`) |
//! | messages of more than 16 MiB | several of the NIC's, the first of which is matched (`engine::long`) |
//! | collective | one of the NICs on a group, or several (`collective`, `engine::groups`) |
//! | inject | a Send whose bytes are copied, and whose end is not told |
//!
//! # Memory
//! A NIC reads and writes memory that a process exports. In a guest with the module that can be any memory, and
//! nothing is pinned. In host mode the device process reaches the node's own memory (one shared mapping) only.
//!
//! *Messages.* In both, short messages travel in the command, and others by bounce memory: one copy more at each
//! end. In a guest, a message that is long enough to pay for an export will be moved from and to the program's
//! memory itself, with a cache of exports that may overlap: unmapping revokes an entry by itself, as the module
//! follows the process's mappings.
//!
//! *RMA*, to registered memory that the node's memory does not hold. Three ways:
//!
//! | way | one-sided progress | coherent with the program's own loads and stores | costs |
//! |---|---|---|---|
//! | **the service, a thread of the target, copies between bounce memory and the range: what is built** | no: it waits for a thread of the target, which may not run | only once the copy is done | a thread wake-up for each operation that finds it asleep, some 10 µs and more on a busy machine; works everywhere, in host mode and in guests |
//! | the device process copies by `process_vm_readv` and `writev`, as libfabric's shm does (CMA) | yes | yes: it is the memory itself; but no word of it can be changed atomically by another process, so atomic operations go through the service | a system call for each span, 0.5 to 1 µs and a walk of page tables; the permission to trace: the same user, `ptrace_scope` 0 or `PR_SET_PTRACER`; nothing where a container denies it |
//! | remapping: pages of the node's memory replace those of the range (`mremap` over it, contents copied), from registration until its end | yes | yes: program and device process map the same pages; atomic operations, too | registration copies the range once and back; whole pages only, so neighbours on the first and last page move along; wrong for stacks in use, memory shared with other processes, files, locked or huge pages; a fork shares what was private; other threads that write while the range is copied lose writes unless they are stopped |
//!
//! The device process's copies are not worth a second way: the service is needed beside them for atomic operations and
//! where tracing is denied, and what goes two ways has no order (a read behind an atomic operation, the orders that
//! programs ask for) unless each waits for the other. They would make the NIC know of processes of the host,
//! which it does not. Remapping changes the program's memory behind its back, and a lost write is
//! worse than a slow one. In guests with the module, where the NIC reaches any exported memory, its own writes and
//! reads are the better way; they are not built. Completion is told when the bytes are in the program's memory.
//!
//! # Progress and threads
//! The NIC matches and moves messages by itself. What needs the process: Sends that the library holds back
//! as the NIC has no place for them, the NIC's completion queue, whose 256 entries it takes, answers, and further
//! pieces of long messages. Each call of the program does these; so does a thread for each endpoint (`progress`), which
//! sleeps while few operations are under way, so that a ping-pong wakes nothing. The service has a thread for each domain with registered memory, which
//! requests wake. A close ends it and waits for it, so `cleanup` has nothing to do.
//! All objects may be used by any thread: FI_THREAD_SAFE, which serves callers that ask for less.
//!
//! # Versions
//! The provider takes the version that it announces from its loader, and calls the loader's functions by name
//! (`loader`): one file serves 1.17 to 2.x. Structures are those of 2.1, which begin as those of 1.17 do
//! (`sys`).
//!
//! # Invariants
//! - `unsafe` stands in `pointers`, `object`, `loader`, `provider`, `info::exchange` and `sys::plain` only, and in the line by which
//!   `object_class!` says that a structure is one of C. All else takes
//!   the types of `pointers` in the place of C's.
//! - Nothing that a program gives makes the provider panic; a panic would end the program at the border.
//! - An operation ends once, and its end is told once, with its context.
//!
//! # The modules
//! | module | holds |
//! |---|---|
//! | `sys`, `pointers`, `object` | the border: declarations, pointers, objects |
//! | `loader`, `provider` | the loader's functions; the entry and `getinfo` |
//! | `info` | what is offered, and what hints leave of it |
//! | `collective` | what each collective moves |
//! | `fabric`, `domain`, `mr`, `mc`, `av`, `cq`, `cntr`, `eq`, `endpoint` | an object each |
//! | `fence` | operations that wait for earlier ones (FI_FENCE) |
//! | `memory`, `regions`, `service`, `base` | memory of programs in pieces; what is registered; what peers do with it; what endpoints have of their domain |
//! | `engine`, `arena`, `progress`, `waiting` | an endpoint at the NIC: operations, bounce memory, the helper; threads that sleep |

mod address;
mod arena;
mod av;
mod base;
mod cntr;
mod collective;
mod cq;
mod domain;
mod endpoint;
mod engine;
mod eq;
mod errno;
mod fabric;
mod fence;
mod info;
mod loader;
mod mc;
mod memory;
mod mr;
mod object;
mod pointers;
mod progress;
mod provider;
mod regions;
mod service;
mod sys;
#[cfg(test)]
mod tests;
mod waiting;

pub use provider::fi_prov_ini;
