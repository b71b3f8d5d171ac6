package client

import "github.com/waggle-net/waggle/pkg/agentcall"

// Errors for errors.Is, shared with package agentcall.
var (
	ErrUnreachable = agentcall.ErrUnreachable
	ErrNotFound    = agentcall.ErrNotFound
)

// Error is an unsuccessful response of the agent.
type Error = agentcall.Error
