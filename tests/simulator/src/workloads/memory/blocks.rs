//! What a read of a volume may return.
//!
//! Requests of one block are carried out in their order, so a read returns the last write in front
//! of it that has ended well, or one behind that which has failed: such a one may be there. What a
//! read has returned is there, and nothing older is returned by reads that begin later.

/// One write of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Write {
    content: u64,
    /// It has ended; and well.
    ended: Option<bool>,
}

/// What is known of a block.
#[derive(Debug, Clone)]
struct Block {
    /// All writes in their order; the first is that of the zeros that stand there before.
    writes: Vec<Write>,
    /// The oldest write that reads from now on may return.
    oldest: usize,
}

/// A read that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Read {
    block: usize,
    /// What stood at its begin: the oldest write that it may return, and the number of all.
    oldest: usize,
    writes: usize,
}

/// A write that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    block: usize,
    write: usize,
}

/// The blocks of one life of a volume.
#[derive(Debug)]
pub(super) struct Blocks(Vec<Block>);

impl Blocks {
    /// All are full of zeros.
    pub(super) fn new(count: u64) -> Self {
        let zeros = Write {
            content: 0,
            ended: Some(true),
        };
        let block = Block {
            writes: vec![zeros],
            oldest: 0,
        };
        Blocks(vec![block; count as usize])
    }

    /// A write begins.
    pub(super) fn write(&mut self, block: u64, content: u64) -> Pending {
        let block = block as usize;
        let writes = &mut self.0[block].writes;
        writes.push(Write {
            content,
            ended: None,
        });
        Pending {
            block,
            write: writes.len() - 1,
        }
    }

    /// A write has ended.
    pub(super) fn written(&mut self, pending: Pending, well: bool) {
        let block = &mut self.0[pending.block];
        block.writes[pending.write].ended = Some(well);
        if well {
            block.oldest = block.oldest.max(pending.write);
        }
    }

    /// A read begins.
    pub(super) fn read(&self, block: u64) -> Read {
        let known = &self.0[block as usize];
        Read {
            block: block as usize,
            oldest: known.oldest,
            writes: known.writes.len(),
        }
    }

    /// A read has returned this.
    ///
    /// # Panics
    /// If it must not.
    pub(super) fn returned(&mut self, read: Read, content: u64) {
        let block = &mut self.0[read.block];
        let before = &block.writes[..read.writes];
        let last = before.iter().rposition(|write| write.ended == Some(true));
        let oldest = read.oldest.max(last.unwrap_or(0));
        let found = before[oldest..].iter().position(|it| it.content == content);
        let Some(found) = found else {
            let possible: Vec<_> = before[oldest..].iter().map(|it| it.content).collect();
            let place = block.writes.iter().position(|it| it.content == content);
            panic!(
                "block {} reads {content}, write {place:?} of {}, not one of {possible:?}",
                read.block,
                block.writes.len()
            );
        };
        block.oldest = block.oldest.max(oldest + found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(blocks: &mut Blocks, content: u64) {
        let read = blocks.read(0);
        blocks.returned(read, content);
    }

    #[test]
    fn a_failed_write_may_be_there_until_a_read_says_so() {
        let mut blocks = Blocks::new(1);
        reads(&mut blocks, 0);
        for (content, well) in [(1, true), (2, false), (3, false)] {
            let write = blocks.write(0, content);
            blocks.written(write, well);
        }
        let early = blocks.read(0);
        reads(&mut blocks, 1);
        reads(&mut blocks, 2);
        blocks.returned(early, 1);
        reads(&mut blocks, 3);
    }

    #[test]
    #[should_panic(expected = "not one of")]
    fn nothing_old_is_read() {
        let mut blocks = Blocks::new(1);
        let (first, second) = (blocks.write(0, 1), blocks.write(0, 2));
        blocks.written(first, true);
        blocks.written(second, true);
        reads(&mut blocks, 1);
    }

    #[test]
    #[should_panic(expected = "not one of")]
    fn what_was_read_is_not_undone() {
        let mut blocks = Blocks::new(1);
        let write = blocks.write(0, 1);
        blocks.written(write, false);
        reads(&mut blocks, 1);
        reads(&mut blocks, 0);
    }

    #[test]
    #[should_panic(expected = "not one of")]
    fn a_read_does_not_see_what_is_written_behind_it() {
        let mut blocks = Blocks::new(1);
        let read = blocks.read(0);
        let write = blocks.write(0, 1);
        blocks.written(write, true);
        blocks.returned(read, 1);
    }
}
