package kubeapi

// Doubted says, once, whether somebody has asked for a look at the server in use.
func (c *Client) Doubted() bool {
	select {
	case <-c.servers.doubt:
		return true
	default:
		return false
	}
}
