//! A request to create an address.

use std::sync::Arc;

/// A request to create an address.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The UID of the object. Until the provider answers, somebody may replace the object by another one of the same
    /// name.
    pub uid: Option<String>,
    /// The region of the new address.
    pub region: Arc<str>,
    /// The tag of the new address, if the provider supports tags.
    pub tag: Option<Arc<str>>,
}
