//! A request for a new address.

use std::sync::Arc;

/// A request for a new address.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The object that it is for: another may have got its name by the time the answer comes.
    pub uid: Option<String>,
    /// Where it can be used.
    pub region: Arc<str>,
    /// What it carries.
    pub tag: Option<Arc<str>>,
}
