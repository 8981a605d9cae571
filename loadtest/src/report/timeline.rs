//! stub
/// stub
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline;
