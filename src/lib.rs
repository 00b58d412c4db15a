//! A governed tool layer for LLM agents. A framework hands over a tool call and gets a bounded result; in between the
//! call is validated, authorised, confined by the kernel, executed, bounded and recorded, by one pipeline that no tool
//! can go around.
//!
//! The rooms of a call, in order: [`settle`] leads it through all of them; [`registry`] looks the tool up; [`args`]
//! decodes; [`permission`] authorises; [`sandbox`] opens; [`tools`] execute; [`output`] bounds; [`record`] records; the
//! caller gets a [`result::ToolResult`].

pub mod args;
pub mod config;
pub mod context;
mod edit;
pub mod error;
mod fork;
pub mod memory;
mod output;
pub mod permission;
#[cfg(feature = "python")]
mod python;
pub mod record;
pub mod registry;
pub mod result;
pub mod sandbox;
pub mod settle;
pub mod skills;
mod tools;
