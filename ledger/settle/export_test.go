package settle

import "context"

// Look does once what Run does every minute.
func (b *Billing) Look(ctx context.Context, peerOf PeerOf) error { return b.look(ctx, peerOf) }
