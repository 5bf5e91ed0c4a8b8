//! What a read may return: the content of the last completed write, or that of a write that
//! has failed since, and after that no older one.

/// The blocks of one volume. A block that was never written is zero.
#[derive(Debug)]
pub(crate) struct Oracle {
    /// The contents that each block may have, in the order of the writes.
    blocks: Vec<Vec<u64>>,
}

impl Oracle {
    /// All blocks are zero.
    pub(crate) fn new(blocks: u64) -> Self {
        Oracle {
            blocks: vec![vec![0]; blocks as usize],
        }
    }

    /// A write has completed.
    pub(crate) fn written(&mut self, block: u64, content: u64) {
        self.blocks[block as usize] = vec![content];
    }

    /// A write has failed: it may have been carried out, or be carried out later.
    pub(crate) fn failed(&mut self, block: u64, content: u64) {
        self.blocks[block as usize].push(content);
    }

    /// A read has returned this.
    ///
    /// # Panics
    /// If it must not.
    pub(crate) fn read(&mut self, block: u64, content: u64) {
        let possible = &mut self.blocks[block as usize];
        let found = possible.iter().position(|possible| *possible == content);
        let Some(found) = found else {
            panic!("block {block} reads {content}, not one of {possible:?}");
        };
        possible.drain(..found);
    }

    /// Returns true if a block was written for certain.
    pub(crate) fn is_written(&self, block: u64) -> bool {
        self.blocks[block as usize][0] != 0
    }
}
