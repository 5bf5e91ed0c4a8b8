//! A process that forks while peers write to its memory.

use super::harness::{close, pair};
use super::memory::{begin_write, end, read, write};
use super::regions::{register, ALL};
use crate::service::PIECE_MAX;

const BEFORE: u8 = 1;
const DURING: u8 = 2;
const BEHIND: u8 = 3;

/// Forks. The child waits for a byte from the pipe, and ends with 0 if nothing of what was written behind the fork is
/// in its copy of the memory.
#[allow(unsafe_code)]
fn fork(memory: &[u8], pipe: [libc::c_int; 2]) -> libc::pid_t {
    // SAFETY: the child calls only what a child of a process with threads may call, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut byte = 0u8;
        // SAFETY: the other end of a pipe that is open; the byte lives.
        let come = unsafe { libc::read(pipe[0], std::ptr::from_mut(&mut byte).cast(), 1) };
        let is_own = memory.iter().all(|byte| [BEFORE, DURING].contains(byte));
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(come != 1 || !is_own)) };
    }
    child
}

#[allow(unsafe_code)]
fn pipe() -> [libc::c_int; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

/// Lets the child look, and returns its status.
#[allow(unsafe_code)]
fn status(child: libc::pid_t, pipe: [libc::c_int; 2]) -> libc::c_int {
    let mut status = 0;
    // SAFETY: an open descriptor and a byte; a child of this process, and room for its status; descriptors of this
    // function's caller, which uses them no more.
    unsafe {
        assert_eq!(libc::write(pipe[1], [1u8].as_ptr().cast(), 1), 1);
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        for end in pipe {
            libc::close(end);
        }
    }
    status
}

/// What peers write goes to the parent, which goes on; the child has what was there at the fork.
#[test]
fn memory_of_a_process_that_forks_stays_that_of_the_parent() {
    let (_cluster, a, b) = pair();
    let mut memory = vec![BEFORE; 4 * PIECE_MAX];
    let region = register(&b, &mut memory, ALL, 1);
    let (during, behind) = (vec![DURING; memory.len()], vec![BEHIND; memory.len()]);
    for _ in 0..3 {
        for _ in 0..8 {
            begin_write(&a, 0, &during, (0, 1), 1);
        }
        let pipe = pipe();
        let child = fork(&memory, pipe);
        for _ in 0..8 {
            assert!(end(&a, 1).is_ok());
        }
        assert_eq!(write(&a, 0, &behind, (0, 1), 2), Ok(()));
        assert!(memory == behind);
        assert_eq!(status(child, pipe), 0);
        let mut back = vec![0; memory.len()];
        assert_eq!(read(&a, 0, &mut back, (0, 1), 3), Ok(()));
        assert!(back == behind);
        memory.fill(BEFORE);
    }
    assert_eq!(close(region), 0);
    a.close();
    b.close();
}
