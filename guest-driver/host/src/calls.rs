//! Methods that pass a call on to the driver core.

/// Makes such methods of an object of the driver core: for each its documentation, name and argument.
macro_rules! pass_on {
    ($this:ident => $object:expr; $($(#[$doc:meta])* $name:ident($argument:ty);)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`HostError::Call`](crate::HostError::Call)
        pub fn $name(&$this, call: &mut $argument) -> Result<(), crate::HostError> {
            Ok($object.$name(call)?)
        }
    )*};
}

pub(crate) use pass_on;
