package kubeapi

// Doubted reports whether a probe of the active server is requested, and clears the request.
func (c *Client) Doubted() bool {
	select {
	case <-c.servers.doubt:
		return true
	default:
		return false
	}
}
