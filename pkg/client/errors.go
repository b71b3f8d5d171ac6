package client

import "github.com/waggle-net/waggle/pkg/agentcall"

// Errors that callers tell apart with errors.Is. They are those of the plugin's calls.
var (
	ErrUnreachable = agentcall.ErrUnreachable
	ErrNotFound    = agentcall.ErrNotFound
)

// Error is an answer of the agent that is not a success.
type Error = agentcall.Error
