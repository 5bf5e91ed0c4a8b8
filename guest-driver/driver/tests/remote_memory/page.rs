//! Pages of the virtual cluster: what is in one is a number, and one page is in one place.

use std::cell::Cell;
use std::rc::Rc;

/// What is in a page that its owner has used for something else.
pub(crate) const USED_OTHERWISE: u64 = u64::MAX;

/// A page. It is not copied: whoever has it owns it.
#[derive(Debug)]
pub(crate) struct Page(Rc<Cell<u64>>);

/// A page that the NIC reads: it sees what the owner does to it meanwhile.
#[derive(Debug)]
pub(crate) struct Lent(Rc<Cell<u64>>);

impl Page {
    /// A page with this in it.
    pub(crate) fn new(content: u64) -> Self {
        Page(Rc::new(Cell::new(content)))
    }

    /// What is in it.
    pub(crate) fn content(&self) -> u64 {
        self.0.get()
    }

    /// Changes what is in it.
    pub(crate) fn fill(&self, content: u64) {
        self.0.set(content);
    }

    /// Lends it to the NIC.
    pub(crate) fn lend(&self) -> Lent {
        Lent(self.0.clone())
    }

    /// Whoever gets it back may use it for something else: the NIC reads it no more.
    ///
    /// # Panics
    /// If it does.
    pub(crate) fn assert_free(&self) {
        assert_eq!(Rc::strong_count(&self.0), 1, "the NIC still reads a page");
    }

    /// Says whether two handles are of one page.
    pub(crate) fn is(&self, other: &Lent) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Lent {
    /// What is in it now.
    pub(crate) fn content(&self) -> u64 {
        self.0.get()
    }
}
