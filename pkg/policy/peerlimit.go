package policy

import "fmt"

// maxPeerSelectors limits the peers by labels in all rules of one policy, without entities and Services. Each of them may choose all identities of the cluster,
// and a node keeps the identities of each, so tens of thousands of peers take gigabytes.
const maxPeerSelectors = 1000

var errPeerSelectors = fmt.Errorf("the policy chooses peers by labels more than %d times", maxPeerSelectors)
